"""Routers that choose by load alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blis_sim.engine.cluster.routing.policy import Choice, one_of_the_best
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.cluster.ties import Ties
from blis_sim.engine.request import Request


@dataclass(frozen=True, slots=True)
class ByLoad:
    """The candidate that `choose_place` finds among the loads of all."""

    choose_place: Callable[[Sequence[int]], int]
    reads_snapshots: bool = True
    reads_in_flight: bool = True
    reads_caches: bool = False
    reads_adapters: bool = False

    def choose(self, request: Request, state: RoutingState) -> Choice:
        return Choice(self.choose_place([snapshot.load for snapshot in state.candidates]))


def least_loaded(ties: Ties) -> ByLoad:
    """The one with the least effective load; who it is among equals is drawn."""
    return ByLoad(lambda loads: one_of_the_best([-load for load in loads], ties))


def always_busiest() -> ByLoad:
    """The one with the most effective load, the first of equals: to test how bad it can get."""
    return ByLoad(lambda loads: loads.index(max(loads)))
