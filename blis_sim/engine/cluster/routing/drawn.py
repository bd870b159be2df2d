"""Any of them."""

from blis_sim.engine.cluster.routing.blind import BlindRouter
from blis_sim.engine.cluster.ties import Ties


class Random(BlindRouter):
    """Each candidate is as likely as any other."""

    def __init__(self, ties: Ties) -> None:
        self._draw = ties

    def places(self, num_candidates: int, num_requests: int) -> list[int]:
        return [self._draw(num_candidates) for _ in range(num_requests)]
