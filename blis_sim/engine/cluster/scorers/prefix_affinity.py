"""Scores by where prompts that begin alike were sent before: what the router can know by itself."""

from collections.abc import Container

from blis_sim.engine.cluster.routed_prefixes import RoutedPrefixes
from blis_sim.engine.cluster.scorers.scorer import Scorer, ScorerSettings, Scores
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


class PrefixAffinity:
    """Keeps in mind which blocks each instance was sent, the latest ones only."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self._sent: dict[int, RoutedPrefixes] = {}

    def score(self, request: Request, state: RoutingState) -> Scores:
        """The share of the prompt's full blocks, from its beginning on, that each candidate was sent."""
        num_blocks = request.input_tokens // self._block_size
        if not num_blocks:
            return [0.0] * len(state.candidates)
        sent = self._sent
        return [
            sent[each.instance].num_known(request.blocks, num_blocks) / num_blocks if each.instance in sent else 0.0
            for each in state.candidates
        ]

    def routed(self, request: Request, instance: int, state: RoutingState) -> None:
        """All full blocks of the prompt have gone to `instance`."""
        if instance not in self._sent:
            self._forget_all_but({each.instance for each in state.all_candidates})
            self._sent[instance] = RoutedPrefixes()
        self._sent[instance].note(request.blocks, request.input_tokens // self._block_size)

    def _forget_all_but(self, present: Container[int]) -> None:
        """Instances that take no requests any more never do again."""
        for gone in [instance for instance in self._sent if instance not in present]:
            del self._sent[gone]


def prefix_affinity(settings: ScorerSettings) -> Scorer:
    """A scorer that has seen nothing yet."""
    affinity = PrefixAffinity(settings.block_size_tokens)
    return Scorer(affinity.score, affinity.routed, reads_in_flight=False)
