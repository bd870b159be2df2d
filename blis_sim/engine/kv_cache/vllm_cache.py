"""The paged KV cache as vLLM 0.33 keeps it: slots by position, content registered when slots are allocated."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import BlockPool
from blis_sim.engine.kv_cache.changes import AllBlocksCleared, BlockRemoved, BlocksStored, CacheChange
from blis_sim.engine.kv_cache.content_index import ContentIndex
from blis_sim.engine.sequence import Sequence


class VllmKVCache:
    """Blocks for the sequences of one engine, first come first served, with automatic prefix caching.

    One of the configured blocks is vLLM's null block and never handed out. Every call does all it says or nothing.
    Facts: vllm/v1/core/kv_cache_manager.py, block_pool.py. Cost: O(blocks touched).
    """

    __slots__ = ("_block_size", "_caches", "_changes", "_limit_tokens", "_lookahead_tokens", "_watermark_blocks",
                 "_withheld", "hit_tokens", "index", "pool", "queried_tokens")  # fmt: skip

    def __init__(self, config: EngineConfig, changes: list[CacheChange] | None = None) -> None:
        """`changes` is where it is noted what happens to the content, if somebody wants to know."""
        self._block_size = config.block_size_tokens
        self._caches = config.enable_prefix_caching
        self._watermark_blocks = int(config.watermark_fraction * config.total_kv_blocks)
        self.pool = BlockPool(config.total_kv_blocks - 1)
        self.index = ContentIndex()
        self._limit_tokens = config.limit_tokens
        self._lookahead_tokens = config.speculation.num_lookahead_tokens if config.speculation else 0
        self.hit_tokens = 0
        """Prompt tokens found in the cache, counted once per request."""
        self.queried_tokens = 0
        """Prompt tokens looked for, counted once per request."""
        self._changes = changes
        self._withheld: list[int] = []

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        return self.pool.num_used

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        self.pool.check()

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        if self.num_used_blocks:
            return False
        self.index = ContentIndex()
        if self._changes is not None:
            self._changes.append(AllBlocksCleared())
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's beginning, at most all but its last token. Changes nothing."""
        if not self._caches or not sequence.request.reads_prefix_cache:
            return []
        # The last token must be computed whatever the cache holds, for its logits.
        last = (sequence.num_tokens - 1) // self._block_size
        return self.index.find_all(map(sequence.request.blocks.identity, range(last)))

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        """Count an admission in the cache's hit rate; a request that was preempted before does not count again."""
        if self._caches and sequence.request.reads_prefix_cache and sequence.num_preemptions == 0:
            self.queried_tokens += sequence.num_tokens
            self.hit_tokens += num_hit_blocks * self._block_size

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for the next `num_tokens` tokens of a running sequence. False, and nothing changed, if too few."""
        after = sequence.num_computed_tokens + num_tokens
        needed = self._blocks_for(after + self._lookahead_tokens) - len(sequence.block_ids)
        if needed > 0:
            if needed > self.pool.num_free:
                return False
            self.take(sequence, needed)
        if after // self._block_size > sequence.num_registered_blocks:
            self.register(sequence, min(after, sequence.num_tokens))
        return True

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        """Slots for a waiting sequence: the cached blocks `hits` and the next `num_tokens` tokens after them.

        With `whole_must_fit` all it has to compute so far must fit now. While others run, the watermark stays free.
        """
        watermark = self._watermark_blocks if others_run else 0
        claimed = len(hits) - sum(map(self.pool.is_free, hits))
        free = self.pool.num_free - watermark
        if whole_must_fit and self._blocks_for(sequence.num_tokens) - claimed > free:
            return False
        after = len(hits) * self._block_size + num_tokens
        blocks = self._blocks_for(after + self._lookahead_tokens)
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
        """Make the full blocks among the first `num_tokens` tokens findable."""
        if not self._caches:
            return
        first, end = sequence.num_registered_blocks, num_tokens // self._block_size
        if first >= end:
            return
        for index in range(first, end):
            self.index.register(sequence.block_ids[index], sequence.request.blocks.identity(index))
        sequence.num_registered_blocks = end
        if self._changes is not None:
            self._changes.append(BlocksStored(sequence.request, first, end))

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back, the last first; those nobody can find are reused first."""
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
        """Keep so many blocks from everybody, those withheld before included, or as many as are free."""
        while len(self._withheld) > num_blocks:
            self.pool.give_back_to_reuse_first(self._withheld.pop())
        while len(self._withheld) < num_blocks and self.pool.num_free:
            self._withheld.append(self._take_block())

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return: what it can find again, others can too."""
        self.release(sequence)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._limit_tokens) // self._block_size)

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
