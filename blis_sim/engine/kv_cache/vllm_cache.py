"""The paged KV cache as vLLM 0.33 keeps it: slots by position, content registered when slots are allocated."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import BlockPool
from blis_sim.engine.kv_cache.changes import AllBlocksCleared, BlockRemoved, BlocksStored, CacheChange
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.sequence import Sequence


class VllmKVCache(SlotCache):
    """Numbered blocks, first come first served, with automatic prefix caching.

    Facts: vllm/v1/core/kv_cache_manager.py, block_pool.py. Cost: O(blocks touched).
    """

    __slots__ = ("_changes", "_lookahead_tokens", "_withheld", "pool")

    def __init__(self, config: EngineConfig, changes: list[CacheChange] | None = None) -> None:
        """`changes` receives what happens to the content."""
        super().__init__(config)
        self.pool = BlockPool(self.num_blocks)
        self._lookahead_tokens = config.speculation.num_lookahead_tokens if config.speculation else 0
        self._changes = changes
        self._withheld: list[int] = []

    @property
    def num_used_blocks(self) -> int:
        return self.pool.num_used

    def check(self) -> None:
        self.pool.check()

    def forget(self) -> bool:
        if not super().forget():
            return False
        if self._changes is not None:
            self._changes.append(AllBlocksCleared())
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        found = self.find_prefix(sequence)
        if found and self._changes is not None and sequence.request.reports_found_blocks:
            self._changes.append(BlocksStored(sequence.request, 0, len(found)))
        return found

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the beginning of a sequence, as far as these may be shared."""
        if not self.caches or not sequence.request.reads_prefix_cache:
            return []
        # The last token must be computed whatever the cache holds, for its logits.
        last = (sequence.num_tokens - 1) // self.block_size
        return self.index.find_all(map(sequence.request.blocks.identity, range(last)))

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        after = sequence.num_computed_tokens + num_tokens
        needed = self.blocks_for(after + self._lookahead_tokens) - len(sequence.block_ids)
        if needed > 0:
            if needed > self.pool.num_free:
                return False
            self.take(sequence, needed)
        if after // self.block_size > sequence.num_registered_blocks:
            self.register(sequence, min(after, sequence.num_tokens))
        return True

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        watermark = self.watermark_blocks if others_run else 0
        claimed = len(hits) - sum(map(self.pool.is_free, hits))
        free = self.pool.num_free - watermark
        if whole_must_fit and self.blocks_for(sequence.num_tokens) - claimed > free:
            return False
        after = len(hits) * self.block_size + num_tokens
        blocks = self.blocks_for(after + self._lookahead_tokens)
        if blocks - claimed > free:
            return False
        for block in hits:
            self.pool.share(block)
        sequence.block_ids.extend(hits)
        sequence.num_registered_blocks = len(hits)
        self.take(sequence, blocks - len(hits))
        self.register(sequence, min(after, sequence.num_tokens))
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        if not self.caches:
            return
        first, end = sequence.num_registered_blocks, num_tokens // self.block_size
        if first >= end:
            return
        for index in range(first, end):
            self.index.register(sequence.block_ids[index], sequence.request.blocks.identity(index))
        sequence.num_registered_blocks = end
        if self._changes is not None:
            self._changes.append(BlocksStored(sequence.request, first, end))

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back, the last first; blocks that cannot be found are reused first."""
        useless = []
        for block in reversed(sequence.block_ids):
            if self.index.is_registered(block):
                self.pool.give_back(block)
            else:
                useless.append(block)
        for block in reversed(useless):
            self.pool.give_back_to_reuse_first(block)
        sequence.block_ids = []
        sequence.num_registered_blocks = 0

    def withhold(self, num_blocks: int) -> None:
        while len(self._withheld) > num_blocks:
            self.pool.give_back_to_reuse_first(self._withheld.pop())
        while len(self._withheld) < num_blocks and self.pool.num_free:
            self._withheld.append(self._take_block())

    def evict(self, sequence: Sequence) -> None:
        self.release(sequence)

    def take(self, sequence: Sequence, num_blocks: int) -> None:
        """Give a sequence so many blocks, which must be free."""
        for _ in range(num_blocks):
            sequence.block_ids.append(self._take_block())

    def _take_block(self) -> int:
        """The next free block, with its content forgotten."""
        block = self.pool.take()
        forgotten = self.index.forget(block)
        if forgotten is not None and self._changes is not None:
            self._changes.append(BlockRemoved(forgotten))
        return block
