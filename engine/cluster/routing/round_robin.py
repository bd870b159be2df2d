"""Each instance in turn."""

from engine.cluster.routing.policy import Choice
from engine.cluster.state import RoutingState
from engine.request import Request


class RoundRobin:
    """The counter goes on whoever the candidates are."""

    reads_snapshots = False
    reads_in_flight = False
    reads_caches = False
    reads_adapters = False

    def __init__(self) -> None:
        self._num_routed = 0

    def choose(self, request: Request, state: RoutingState) -> Choice:
        place = self._num_routed % len(state.candidates)
        self._num_routed += 1
        return Choice(place)
