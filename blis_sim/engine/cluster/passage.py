"""Arrivals that come to their instances at once: what the general way does with each of them, at less cost.

A cluster that admits everybody and takes no time for it has nothing to plan for an arrival: it looks at the instances
if routing depends on that, chooses one, and lets the request in there. Until the instances report something new it goes
on to the next arrival without stopping them. Who goes where is what `Cluster` says step by step: admission, routing,
and the way to the instance.
"""

from typing import TYPE_CHECKING

from blis_sim.engine.cluster.admission import Stateless, always_admit
from blis_sim.engine.cluster.latencies import Latencies
from blis_sim.engine.cluster.routing import BlindRouter
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster

_EVERYBODY = Stateless(always_admit)
_AT_ONCE = Latencies()


def has_free_passage(cluster: "Cluster") -> bool:
    """Whether all that is decided about a request is where it goes, and that as soon as it arrives."""
    return (
        cluster.decisions is None
        and cluster.gateway is None
        and cluster.admission == _EVERYBODY
        and cluster.latencies == _AT_ONCE
        and cluster.admitted == cluster.dispatch
        and cluster.place == cluster.enter
    )


def let_in(cluster: "Cluster", until: Micros) -> None:
    """Let all in that arrive by `until`, and before anything else is to be done."""
    state, agenda = cluster.state, cluster.agenda
    if not state.candidates:
        return  # they are turned away one by one
    while (at := agenda.next_in_line(until)) is not None:
        last = until
        if cluster.router_looks:
            cluster.look_if_needed(at)
            last = min(until, max(at, state.news_due_at - 1))
        arrivals = agenda.take_line(last, at_most=1 if cluster.looks_always and cluster.router_looks else None)
        for number, sequences in _chosen(cluster, arrivals).items():
            cluster.members.enter_all(number, sequences)


def _chosen(cluster: "Cluster", arrivals: list[Sequence]) -> dict[int, list[Sequence]]:
    """The requests by the number of the instance each goes to."""
    state, router = cluster.state, cluster.router
    numbers = [snapshot.instance for snapshot in state.candidates]
    chosen: dict[int, list[Sequence]] = {}
    if isinstance(router, BlindRouter):
        state.now = arrivals[-1].arrived_at
        for place, sequence in zip(router.places(len(numbers), len(arrivals)), arrivals, strict=True):
            chosen.setdefault(numbers[place], []).append(sequence)
        return chosen
    choose = router.choose
    for sequence in arrivals:
        state.now = sequence.arrived_at
        chosen.setdefault(numbers[choose(sequence.request, state).place], []).append(sequence)
    return chosen
