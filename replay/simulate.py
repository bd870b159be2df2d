"""Run arrivals through one engine until it is drained or the horizon is reached."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.core import Engine
from engine.events import Finished, Scheduled
from engine.sequence import Sequence
from engine.units import Micros
from engine.virtual import run_virtual
from replay.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Simulated:
    """A finished run: the engine as it stands at the end, and each arrival with what became of it.

    The sequence is None for a request that never got anywhere before the horizon.
    """

    engine: Engine
    requests: list[tuple[Arrival, Sequence | None]]


def simulate(
    engine: Engine,
    arrivals: list[Arrival],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
) -> Simulated:
    """Feed `arrivals`, ascending, to a fresh engine. `on_finished` is called once for each request that ends."""
    sequences: dict[str, Sequence] = {}
    for event in run_virtual(engine, ((arrival.at, arrival.request) for arrival in arrivals), horizon_us):
        if isinstance(event, Scheduled | Finished):
            sequences[event.sequence.request.id] = event.sequence
            if on_finished is not None and isinstance(event, Finished):
                on_finished()
    return Simulated(engine, [(arrival, sequences.get(arrival.request.id)) for arrival in arrivals])
