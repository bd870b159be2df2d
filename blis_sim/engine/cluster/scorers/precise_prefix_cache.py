"""Scores by what KV caches really hold, as far as the router has been told."""

from blis_sim.engine.cluster.scorers.scorer import Scores, from_least_to_most
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


def precise_prefix_cache(request: Request, state: RoutingState) -> Scores:
    """1 for the most leading blocks of the prompt, 0 for the fewest."""
    return from_least_to_most(state.cached_blocks(request))
