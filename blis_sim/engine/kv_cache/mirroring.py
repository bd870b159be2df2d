"""BLIS's use of CPU memory: a copy of everything, consulted first (sim/kv/tiered.go, `MirrorToCPU`)."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.tiered_cache import TieredKVCache
from blis_sim.engine.sequence import Sequence


class MirroringKVCache(TieredKVCache):
    """Everything the running requests hold is copied to CPU memory, and looked for there before every allocation.

    Cost: O(blocks held) in every step.
    """

    __slots__ = ()

    @property
    def thrashing_rate(self) -> float:
        return self.tier.num_evicted / self.tier.num_stored if self.tier.num_stored else 0.0

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        self._note_shift(sequence)
        if self._bring_back(sequence, cached):
            return self._allocate_after_return(sequence, num_tokens, cached)
        allocated = super().allocate_prompt(sequence, num_tokens, cached)
        self.num_misses_in_tier += not allocated
        return allocated

    def allocate_token(self, sequence: Sequence) -> bool:
        self._note_shift(sequence)
        returned = self._bring_back(sequence, ())
        allocated = super().allocate_token(sequence)
        self.num_misses_in_tier += not allocated and not returned
        return allocated

    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        for sequence in running:
            self.tier.keep(self.index.identities_of(sequence.block_ids), self.now)
