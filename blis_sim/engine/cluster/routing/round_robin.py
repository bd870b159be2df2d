"""Each instance in turn."""

from blis_sim.engine.cluster.routing.blind import BlindRouter


class RoundRobin(BlindRouter):
    """The counter goes on whoever the candidates are."""

    def __init__(self) -> None:
        self._num_routed = 0

    def places(self, num_candidates: int, num_requests: int) -> list[int]:
        first = self._num_routed
        self._num_routed += num_requests
        return [number % num_candidates for number in range(first, self._num_routed)]
