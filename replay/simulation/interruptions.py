"""Pauses, sleep and emptied caches of a recorded server, which happen in its replay at the same instants."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.simulation import Simulation, WrappedSimulation
from blis_sim.engine.units import Micros
from blis_sim.options.interruptions import ABORT, RESET

_STATES: Mapping[str, PauseState] = {state.name.lower(): state for state in PauseState}


class Interruption(NamedTuple):
    """One change: the name of a `PauseState` in lower case, `ABORT` for the end of all requests, or `RESET` for an
    emptied prefix cache."""

    at: Micros
    kind: str


class InterruptedSimulation(WrappedSimulation):
    """`simulation`, all of whose engines are interrupted on the way; `cluster` if there is a router in front.

    The run gets only ends of requests.
    """

    def __init__(
        self, simulation: Simulation, interruptions: Iterable[Interruption], cluster: Cluster | None = None
    ) -> None:
        WrappedSimulation.__init__(self, simulation)
        self._cluster = cluster
        self._coming = deque(sorted(interruptions, key=lambda each: each.at))

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; requests that wait for the end of a pause wait for it."""
        due = self._simulation.next_event_at()
        if not self._coming or not any(engine.live for engine in self.instances):
            return due
        return self._coming[0].at if due is None else min(due, self._coming[0].at)

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`, and interrupt the engines where that is due."""
        events: list[Event] = []
        while self._coming and self._coming[0].at <= until:
            at, kind = self._coming.popleft()
            now = self._simulation.now
            if now is None or at - 1 > now:
                events += self._simulation.advance(at - 1)
            if kind == ABORT:
                self._abort_all(at)
                continue
            for engine in self.instances:
                _interrupt(engine, kind, max(at, (engine.now or 0) + 1))
            if self._cluster is not None:
                for number in list(self._cluster.members):
                    self._cluster.members.update_next_event(number)
        if (now := self._simulation.now) is None or until > now:
            events += self._simulation.advance(until)
        return [event for event in events if isinstance(event, Finished)]

    def _abort_all(self, at: Micros) -> None:
        at = max(at, (self._simulation.now or 0) + 1)
        for request_id in [each for engine in self.instances for each in engine.live]:
            self._simulation.abort(request_id, at)


def _interrupt(engine: Engine, kind: str, at: Micros) -> None:
    if kind == RESET:
        engine.reset_prefix_cache(at, preempts_running=True)
    else:
        engine.hold(_STATES[kind], at)
