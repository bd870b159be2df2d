"""The virtual-time driver: jump from event to event, as fast as the engine can."""

from collections.abc import Iterable, Iterator

from engine.events import Event
from engine.request import Request
from engine.simulation import Simulation
from engine.units import Micros

CHUNK_US: Micros = 60_000_000
"""How far to advance at a time once everything has arrived: far enough to be cheap, and events do not pile up."""

ARRIVALS_AHEAD = 16
"""How many arrivals per instance the simulation is told of before it is advanced to the next."""


def run_virtual(
    simulation: Simulation, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None
) -> Iterator[Event]:
    """Feed `arrivals`, ascending by instant, and yield what happens until nothing is left to do.

    With a horizon, nothing after it is done; arrivals after it are never submitted.
    """
    num_ahead, most_ahead = 0, ARRIVALS_AHEAD * len(simulation.instances)
    for at, request in arrivals:
        if horizon_us is not None and at > horizon_us:
            break
        if num_ahead >= most_ahead and (simulation.now is None or at > simulation.now + 1):
            yield from simulation.advance(at - 1)
            num_ahead = 0
        simulation.submit(request, at)
        num_ahead += 1
    while (due_at := simulation.next_event_at()) is not None:
        until = due_at + CHUNK_US
        if horizon_us is not None:
            if due_at > horizon_us:
                break
            until = min(until, horizon_us)
        yield from simulation.advance(until)
