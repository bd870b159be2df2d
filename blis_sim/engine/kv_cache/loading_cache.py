"""vLLM's KV cache where waiting requests hold the blocks that are loaded for them from CPU memory."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.sequence import Sequence


class LoadingKVCache(VllmKVCache):
    """A request takes the blocks of its local hits and of its load at once, and joins the batch with them later."""

    __slots__ = ("loaded",)

    def __init__(self, config: EngineConfig, changes: list[CacheChange] | None = None) -> None:
        super().__init__(config, changes)
        self.loaded: dict[Sequence, int] = {}
        """Blocks loaded for each waiting request, which holds them after those found here."""

    def take_for_load(self, sequence: Sequence, hits: SequenceOf[int], num_blocks: int, kept_free: int) -> bool:
        """Hold `hits` and `num_blocks` more for a waiting request. False where its prompt would leave too few free."""
        claimed = len(hits) - sum(map(self.pool.is_free, hits))
        free = self.pool.num_free - kept_free
        if self.blocks_for(sequence.num_tokens) - claimed > free:
            return False
        for block in hits:
            self.pool.share(block)
        sequence.block_ids.extend(hits)
        self.take(sequence, num_blocks)
        self.loaded[sequence] = num_blocks
        return True

    def num_lacking(self, sequence: Sequence) -> int:
        """Return the blocks that a request needs beside those it holds, to hold all its tokens."""
        return max(0, self.blocks_for(sequence.num_tokens) - len(sequence.block_ids))

    def finish_load(self, sequence: Sequence) -> None:
        """Let the loaded blocks be found."""
        first = len(sequence.block_ids) - self.loaded[sequence]
        sequence.num_registered_blocks = first
        self.register(sequence, len(sequence.block_ids) * self.block_size)

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        held = sequence.block_ids
        if not held:
            return super().admit(sequence, num_tokens, hits, whole_must_fit, others_run)
        for block in reversed(held):
            self.pool.give_back(block)
        sequence.block_ids = []
        if super().admit(sequence, num_tokens, hits, whole_must_fit, others_run):
            return True
        for block in held:
            self.pool.share(block)
        sequence.block_ids = held
        return False

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        super().count_lookup(sequence, num_hit_blocks - min(num_hit_blocks, self.loaded.get(sequence, 0)))

    def release(self, sequence: Sequence) -> None:
        self.loaded.pop(sequence, None)
        super().release(sequence)
