"""The virtual-time driver: jump from event to event, as fast as the engine can."""

from collections.abc import Iterable, Iterator

from engine.core import Engine
from engine.events import Event
from engine.request import Request
from engine.units import Micros

CHUNK_US: Micros = 60_000_000
"""How far to advance at a time once everything has arrived: far enough to be cheap, and events do not pile up."""

ARRIVALS_AHEAD = 16
"""How many arrivals the engine is told of before it is advanced to the next."""


def run_virtual(
    engine: Engine, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None
) -> Iterator[Event]:
    """Feed `arrivals`, ascending by instant, and yield what happens until nothing is left to do.

    With a horizon, nothing after it is done; arrivals after it are never submitted.
    """
    num_ahead = 0
    for at, request in arrivals:
        if horizon_us is not None and at > horizon_us:
            break
        if num_ahead >= ARRIVALS_AHEAD and (engine.now is None or at > engine.now + 1):
            yield from engine.advance(at - 1)
            num_ahead = 0
        engine.submit(request, at)
        num_ahead += 1
    while (due_at := engine.next_event_at()) is not None:
        until = due_at + CHUNK_US
        if horizon_us is not None:
            if due_at > horizon_us:
                break
            until = min(until, horizon_us)
        yield from engine.advance(until)
