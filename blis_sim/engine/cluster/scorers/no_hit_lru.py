"""Scores that spread prompts which no KV cache knows: whoever got one the longest ago comes first."""

from collections import OrderedDict

from blis_sim.engine.cluster.scorers.scorer import Scorer, Scores
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


class NoHitLru:
    """Keeps in mind the order in which instances got prompts that no cache knew."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, None] = OrderedDict()

    def score(self, request: Request, state: RoutingState) -> Scores:
        """A half for all when some cache knows the prompt; else from 1, for who never got one, down to 0."""
        candidates = state.candidates
        if any(state.cached_blocks(request)):
            return [0.5] * len(candidates)
        if len(candidates) == 1:
            return [1.0]
        rank_of = {instance: rank for rank, instance in enumerate(self._used)}
        by_age = sorted(range(len(candidates)), key=lambda place: rank_of.get(candidates[place].instance, -1))
        scores = [0.0] * len(candidates)
        for rank, place in enumerate(by_age):
            scores[place] = 1 - rank / (len(candidates) - 1)
        return scores

    def routed(self, request: Request, instance: int, state: RoutingState) -> None:
        """`instance` got a prompt; one that a cache knew changes no order."""
        if not any(state.cached_blocks(request)):
            if instance not in self._used:
                present = {each.instance for each in state.all_candidates}
                self._used = OrderedDict.fromkeys(each for each in self._used if each in present)
            self._used[instance] = None
            self._used.move_to_end(instance)


def no_hit_lru() -> Scorer:
    """A scorer that has seen nothing yet."""
    order = NoHitLru()
    return Scorer(order.score, order.routed, reads_in_flight=False, reads_caches=True)
