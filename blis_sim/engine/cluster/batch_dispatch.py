"""Dispatches arrivals in batches; equal in effect to `Cluster`'s path of one request at a time, at less cost.

A cluster that admits every request, at once, schedules nothing for an arrival: it reads the snapshots if routing
depends on them, routes the request and enters it at its instance. Until the next report of the instances, one arrival
after the other is dispatched without advancing the instances.
"""

from typing import TYPE_CHECKING

from blis_sim.engine.cluster.admission import FunctionPolicy, always_admit
from blis_sim.engine.cluster.routing import LoadObliviousRouter
from blis_sim.engine.cluster.settings import Latencies
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster


_ALWAYS_ADMIT = FunctionPolicy(always_admit)
_AT_ONCE = Latencies()


def can_dispatch_in_batches(cluster: "Cluster") -> bool:
    """Whether routing at the arrival is the only decision about a request."""
    return (
        cluster.decisions is None
        and cluster.gateway is None
        and cluster.admission == _ALWAYS_ADMIT
        and cluster.latencies == _AT_ONCE
        and cluster.admitted == cluster.dispatch
        and cluster.place == cluster.enter
    )


def dispatch_arrivals(cluster: "Cluster", until: Micros) -> None:
    """Dispatch all requests that arrive by `until` and before all other entries of the event queue."""
    state, event_queue = cluster.state, cluster.event_queue
    if not state.candidates:
        return  # without candidates each request is rejected on its own
    while (at := event_queue.next_arrival_at(until)) is not None:
        last = until
        if cluster.router_reads_snapshots:
            cluster.refresh_snapshots_if_needed(at)
            last = min(until, max(at, state.reports_due_at - 1))
        arrivals = event_queue.take_arrivals(
            last, at_most=1 if cluster.always_reads_snapshots and cluster.router_reads_snapshots else None
        )
        for number, sequences in _routed(cluster, arrivals).items():
            cluster.members.enter_all(number, sequences)


def _routed(cluster: "Cluster", arrivals: list[Sequence]) -> dict[int, list[Sequence]]:
    """Route each request. Returns the requests by number of their instance."""
    state, router = cluster.state, cluster.router
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
