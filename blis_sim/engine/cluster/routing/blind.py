"""Routers that look at nothing: neither at the request nor at the instances."""

from abc import ABC, abstractmethod

from blis_sim.engine.cluster.routing.policy import Choice
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


class BlindRouter(ABC):
    """It only counts. So many requests can be routed at once, without stopping the instances at each."""

    reads_snapshots = False
    reads_in_flight = False
    reads_caches = False
    reads_adapters = False

    @abstractmethod
    def places(self, num_candidates: int, num_requests: int) -> list[int]:
        """Where the next requests go, each to one of as many candidates."""

    def choose(self, request: Request, state: RoutingState) -> Choice:
        (place,) = self.places(len(state.candidates), 1)
        return Choice(place)
