"""Arrivals that come to their instances by nothing but their order: what the general way does with each, many at once.

A cluster that admits everybody at once and whose router looks at nothing has no reason to stop at each arrival. Who
goes where is what `Cluster` says, step by step: admission, routing, and the way to the instance.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from engine.cluster.admission.by_request import Stateless, always_admit
from engine.cluster.latencies import Latencies
from engine.cluster.routing.blind import BlindRouter
from engine.sequence import Sequence
from engine.units import Micros

if TYPE_CHECKING:
    from engine.cluster.cluster import Cluster

Passage: TypeAlias = Callable[[Micros], None]
"""Lets all in that arrive up to an instant, and before anything else is to be done."""

_EVERYBODY = Stateless(always_admit)
_AT_ONCE = Latencies()


def passage_of(cluster: "Cluster") -> Passage | None:
    """How requests come in unseen; None if a decision about any depends on more than how many came before it."""
    router = cluster.router
    if cluster.router_looks or not isinstance(router, BlindRouter) or cluster.admission != _EVERYBODY:
        return None
    if cluster.gateway is not None or cluster.latencies != _AT_ONCE:
        return None
    if cluster.admitted != cluster.dispatch or cluster.place != cluster.enter:
        return None
    return partial(_pass, cluster, router)


def _pass(cluster: "Cluster", router: BlindRouter, until: Micros) -> None:
    candidates = cluster.state.candidates
    if not candidates:
        return  # they are turned away one by one
    arrivals = cluster.agenda.take_line(until)
    if not arrivals:
        return
    cluster.state.now = arrivals[-1].arrived_at
    chosen: list[list[Sequence]] = [[] for _ in candidates]
    for place, sequence in zip(router.places(len(candidates), len(arrivals)), arrivals, strict=True):
        chosen[place].append(sequence)
    for snapshot, sequences in zip(candidates, chosen, strict=True):
        if sequences:
            cluster.members.enter_all(snapshot.instance, sequences)
