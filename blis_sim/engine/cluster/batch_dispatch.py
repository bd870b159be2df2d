"""Dispatches arrivals in batches; equal in effect to `Cluster`'s path of one request at a time, at less cost.

A cluster that admits every request, at once, schedules nothing for an arrival. It reads the snapshots if routing
depends on them, routes the request and enters it at its instance. Until the next report of the instances, one arrival
after the other is dispatched without advancing the instances.
"""

from collections.abc import Callable

from blis_sim.engine.cluster.event_queue import ClusterEventQueue
from blis_sim.engine.cluster.instance import Instances
from blis_sim.engine.cluster.routing import LoadObliviousRouter, Router
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


def dispatch_arrivals(
    event_queue: ClusterEventQueue,
    state: RoutingState,
    router: Router,
    members: Instances,
    until: Micros,
    refresh: Callable[[Micros], None] | None,
    at_most: int | None,
) -> None:
    """Dispatch all requests that arrive by `until` and before all other entries of the event queue.

    `refresh` reads the reports that are due, None where the router reads none. At most `at_most` requests are routed by
    one report; None means no limit.
    """
    if not state.candidates:
        return  # without candidates each request is rejected on its own
    while (at := event_queue.next_arrival_at(until)) is not None:
        last = until
        if refresh is not None:
            refresh(at)
            last = min(until, max(at, state.reports_due_at - 1))
        arrivals = event_queue.take_arrivals(last, at_most=at_most)
        for number, sequences in _routed(state, router, arrivals).items():
            members.enter_all(number, sequences)


def _routed(state: RoutingState, router: Router, arrivals: list[Sequence]) -> dict[int, list[Sequence]]:
    """Route each request. Returns the requests by number of their instance."""
    numbers = [snapshot.instance for snapshot in state.candidates]
    chosen: dict[int, list[Sequence]] = {}
    if isinstance(router, LoadObliviousRouter):
        state.now = arrivals[-1].arrived_at
        places = router.places(len(numbers), [sequence.request for sequence in arrivals])
        for place, sequence in zip(places, arrivals, strict=True):
            chosen.setdefault(numbers[place], []).append(sequence)
        return chosen
    choose = router.choose
    for sequence in arrivals:
        state.now = sequence.arrived_at
        chosen.setdefault(numbers[choose(sequence.request, state).place], []).append(sequence)
    return chosen
