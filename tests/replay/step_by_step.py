"""A run advanced from instant to instant, with all of its events."""

from hypothesis import assume

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event
from tests.strategies import Workload


def drained(workload: Workload) -> tuple[Engine, list[Event]]:
    """All events of a run; workloads that never drain are discarded."""
    engine = workload.engine()
    for at, request in workload.arrivals:
        engine.submit(request, at)
    events: list[Event] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(due_at < 500_000 and len(engine.steps) < 5_000)
        events += engine.advance(due_at)
    return engine, events
