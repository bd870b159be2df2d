"""Scores by whether an instance has the LoRA adapter already."""

from blis_sim.engine.cluster.scorers.scorer import Scores
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


def lora_affinity(request: Request, state: RoutingState) -> Scores:
    """1 where the adapter is in use, else 0; 1 for all when that tells nothing apart, or none is needed."""
    has_it = [request.adapter in snapshot.adapters for snapshot in state.candidates]
    if not request.adapter or not any(has_it):
        return [1.0] * len(has_it)
    return [float(each) for each in has_it]
