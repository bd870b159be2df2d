"""The interface between a simulation, one engine or a cluster of them, and the driver that supplies the time."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class Simulation(Protocol):
    """A simulation takes the time as an argument and returns the events. How often or how far it is advanced changes no
    instant."""

    @property
    def instances(self) -> SequenceOf[Engine]:
        """The engines, by the number that sequences have of theirs."""
        ...

    @property
    def now(self) -> Micros | None:
        """The instant up to which the simulation has been advanced; None before the first time."""
        ...

    @property
    def clock(self) -> Micros:
        """Instant of the last thing that happened: the simulated run ends here."""
        ...

    def submit(self, request: Request, at: Micros) -> Sequence:
        """Let `request` arrive at `at`. Returns its life, for reading.

        Raises ValueError when that is too late, and for an id still in use.
        """
        ...

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant, which ascend; as `submit`, at less cost for each."""
        ...

    def abort(self, request_id: str, at: Micros) -> None:
        """Let the client of `request_id` hang up at `at`; ids not there then are ignored."""
        ...

    def queueing_time(self, request: Request) -> Micros:
        """Return the time after the arrival of a request during which it can still be submitted."""
        ...

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        ...

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; the events in the order they happened."""
        ...
