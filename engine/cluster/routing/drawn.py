"""Any of them."""

from engine.cluster.routing.policy import Choice
from engine.cluster.state import RoutingState
from engine.cluster.ties import Ties
from engine.request import Request


class Random:
    """Each candidate is as likely as any other."""

    reads_snapshots = False
    reads_in_flight = False
    reads_caches = False
    reads_adapters = False

    def __init__(self, ties: Ties) -> None:
        self._draw = ties

    def choose(self, request: Request, state: RoutingState) -> Choice:
        return Choice(self._draw(len(state.candidates)))
