"""The virtual-time driver: jump from event to event, as fast as the engine can."""

from collections.abc import Iterable, Iterator

from engine.core import Engine
from engine.events import Event
from engine.request import Request
from engine.units import Micros


def run_virtual(
    engine: Engine, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None
) -> Iterator[Event]:
    """Feed `arrivals`, ascending by instant, and yield what happens until nothing is left to do.

    With a horizon, nothing after it is done; arrivals after it are never submitted.
    """
    for at, request in arrivals:
        if horizon_us is not None and at > horizon_us:
            break
        if engine.now is None or at > engine.now + 1:
            yield from engine.advance(at - 1)
        engine.submit(request, at)
    while (due_at := engine.next_event_at()) is not None:
        if horizon_us is not None and due_at > horizon_us:
            break
        yield from engine.advance(due_at)
