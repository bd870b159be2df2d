"""Scores by how full the KV cache is."""

from blis_sim.engine.cluster.scorers.scorer import Scores
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


def kv_utilization(_request: Request, state: RoutingState) -> Scores:
    """The share of KV blocks that nobody uses."""
    return [1 - snapshot.kv_usage_fraction for snapshot in state.candidates]
