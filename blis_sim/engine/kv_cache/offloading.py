"""CPU memory as BLIS's published description has it: what is free moves there under pressure, and returns on demand."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.tiered_cache import TieredKVCache
from blis_sim.engine.sequence import Sequence


class OffloadingKVCache(TieredKVCache):
    """While more than a share of the GPU blocks is in use, free ones that can be found move to CPU memory.

    Moved blocks come back when an allocation fails, for that request's next attempt to find.
    """

    __slots__ = ("_most_used_blocks", "_was_over")

    def __init__(self, num_blocks: int, block_size_tokens: int, config: CpuTierConfig) -> None:
        super().__init__(num_blocks, block_size_tokens, config)
        self._most_used_blocks = config.offload_threshold * num_blocks
        self._was_over = False

    @property
    def thrashing_rate(self) -> float:
        return self.tier.num_thrashed / self.tier.num_stored if self.tier.num_stored else 0.0

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        self._note_shift(sequence)
        if super().allocate_prompt(sequence, num_tokens, cached):
            return True
        if self._bring_back(sequence, cached):
            return self._allocate_after_return(sequence, num_tokens, cached)
        self.num_misses_in_tier += 1
        return False

    def allocate_token(self, sequence: Sequence) -> bool:
        self._note_shift(sequence)
        allocated = super().allocate_token(sequence)
        self.num_misses_in_tier += not allocated
        return allocated

    def release(self, sequence: Sequence) -> None:
        released = sequence.block_ids[::-1]
        super().release(sequence)
        if self._is_over():
            self._offload(filter(self.pool.is_free, released))

    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        is_over = self._is_over()
        if is_over and not self._was_over:
            self._offload(self.pool.reusable())
        self._was_over = is_over

    def _is_over(self) -> bool:
        return self.pool.num_used > self._most_used_blocks

    def _offload(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            identity = self.index.identity_of(block)
            if identity is not None and self.index.block_of(identity) == block:
                self.index.forget(block)
                self.tier.keep((identity,), self.now)

    def _fetch(self, identity: object) -> None:
        super()._fetch(identity)
        self.tier.discard(identity)
