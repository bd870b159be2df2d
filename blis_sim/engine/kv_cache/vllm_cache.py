"""The paged KV cache as vLLM 0.33 keeps it: slots by position, with blocks by number or counted.

The number of free blocks and the order in which findable ones are reused decide whether a request gets its blocks. They
also decide what it finds in the cache, and what is evicted when. Block numbers decide nothing. Blocks that only their
own request could ever find again are therefore counts in `CountingKVCache`. They get names only when that request is
preempted.
"""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import BlockPool, CohortCache, SlotCache
from blis_sim.engine.kv_cache.changes import AllBlocksCleared, BlockRemoved, BlocksStored, CacheChange
from blis_sim.engine.sequence import Sequence


class CountingKVCache(CohortCache):
    """Gives the same results as `VllmKVCache`. Cost: O(shareable blocks + runs of free blocks reused)."""

    __slots__ = ("_num_withheld",)

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._num_withheld = 0

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.free.num_free

    def check(self) -> None:
        self.free.check()

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        request, index = sequence.request, self.index
        if not self.enables_caching or not request.reads_prefix_cache or not len(index):
            return []
        last = (request.input_tokens + sequence.num_output_tokens - 1) // self.block_size
        shared = min(last, sequence.num_shareable_blocks)
        found = index.find_leading(request.blocks, shared) if shared else []
        if len(found) == shared:  # then some of its own may be there since it was preempted
            found += index.find_all(map(request.blocks.identity, range(shared, last)))
        return found

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        after = sequence.num_computed_tokens + num_tokens
        needed = self.blocks_for(after) - sequence.num_blocks
        if needed > 0:
            if needed > self.free.num_free:
                return False
            self.take(needed)
            sequence.num_blocks += needed
        self.register(sequence, min(after, sequence.num_tokens))
        return True

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        size, limit, num_hits = self.block_size, self._limit_tokens, len(hits)
        num_known = sequence.input_tokens + sequence.num_output_tokens
        free = self.free.num_free - (self.watermark_blocks if others_run else 0)
        if hits:
            free += self.free.num_held(hits)
        if whole_must_fit and -(-min(num_known, limit) // size) > free:
            return False
        after = num_hits * size + num_tokens
        blocks = -(-min(after, limit) // size)
        if blocks > free:
            return False
        if hits:
            self.free.hold(hits)
            sequence.named_blocks.extend(hits)
            sequence.num_found_blocks = num_hits
        sequence.num_registered_blocks = num_hits
        sequence.num_blocks = blocks
        self.take(blocks - num_hits)
        self.register(sequence, min(after, num_known))
        return True

    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        """`admit` and `count_lookup` at the first admission of a prompt of `num_tokens`, which no request shares.

        Returns how many blocks are to be taken for it.
        """
        sequence.num_blocks = num_blocks = -(-num_tokens // self.block_size)
        if self.enables_caching:
            sequence.num_registered_blocks = num_tokens // self.block_size
            if sequence.request.reads_prefix_cache:
                self.queried_tokens += num_tokens
        return num_blocks

    def may_fit(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether free blocks suffice for all of a waiting sequence if others hold as many of those found as they can.

        That may become so while free blocks are taken: of several with equal content another one is found then.
        """
        num_known = sequence.input_tokens + sequence.num_output_tokens
        return self.blocks_for(num_known) - min(num_hits, sequence.num_shareable_blocks) <= self.free.num_free

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        full = num_tokens // self.block_size
        if not self.enables_caching or full <= sequence.num_registered_blocks:
            return
        num_shareable = sequence.num_shareable_blocks
        if num_shareable > (registered := sequence.num_registered_blocks):
            last = min(full, num_shareable)
            names = self.free.new_names(last - registered, references=1)
            self.index.register_all(names, map(sequence.request.blocks.identity, range(registered, last)))
            sequence.named_blocks.extend(names)
        sequence.num_registered_blocks = full

    def grow_to(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """Count what has been taken for `num_tokens` tokens, of which the first `num_known_tokens` can be found."""
        size = self.block_size
        sequence.num_blocks = -(-min(num_tokens, self._limit_tokens) // size)
        if self.enables_caching and num_known_tokens // size > sequence.num_registered_blocks:
            self.register(sequence, num_known_tokens)

    def will_share(self, sequence: Sequence) -> bool:
        """Whether there are blocks that others could find once it has filled them."""
        return self.enables_caching and sequence.num_registered_blocks < sequence.num_shareable_blocks

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request: blocks that only it could find are lost."""
        self.free.free(sequence.num_registered_blocks - len(sequence.named_blocks))
        self._give_back_rest(sequence)

    def release_grown(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """`grow_to` and `release`, in one call for those that share nothing."""
        if sequence.num_shareable_blocks or sequence.named_blocks:
            self.grow_to(sequence, num_tokens, num_known_tokens)
            self.release(sequence)
            return
        size, registered = self.block_size, sequence.num_registered_blocks
        if num_tokens > self._limit_tokens:
            num_tokens = self._limit_tokens
        if self.enables_caching and (findable := num_known_tokens // size) > registered:
            registered = findable
        self.free.free_in_part(registered, -(-num_tokens // size))
        sequence.num_blocks = sequence.num_registered_blocks = 0

    def withhold(self, num_blocks: int) -> None:
        num_more = min(num_blocks - self._num_withheld, self.free.num_free)
        if num_more > 0:
            self.take(num_more)
        elif num_more < 0:
            self.free.free_useless(-num_more)
        self._num_withheld += num_more

    def evict(self, sequence: Sequence) -> None:
        """Free all blocks of a request that will return and look them up."""
        named, registered = len(sequence.named_blocks), sequence.num_registered_blocks
        if registered > named:
            names = self.free.free_named(registered - named)
            self.index.register_all(names, map(sequence.request.blocks.identity, range(named, registered)))
        self._give_back_rest(sequence)

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""
        free = self.free
        num_left = free.num_next - num_blocks
        if num_left >= 0:  # mostly nothing is forgotten
            free.num_next = num_left
            free.num_free -= num_blocks
            return
        for name in free.take(num_blocks):
            self.index.forget(name)

    def _give_back_rest(self, sequence: Sequence) -> None:
        """Give back the named blocks, the last first, and blocks that cannot be found."""
        self.free.give_back_all(sequence.named_blocks, sequence.num_found_blocks)
        self.free.free_useless(sequence.num_blocks - max(sequence.num_registered_blocks, len(sequence.named_blocks)))
        sequence.named_blocks = []
        sequence.num_found_blocks = 0
        sequence.num_blocks = 0
        sequence.num_registered_blocks = 0


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
        if not self.enables_caching or not sequence.request.reads_prefix_cache:
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
        if not self.enables_caching:
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
        """Give a sequence `num_blocks` blocks, which must be free."""
        for _ in range(num_blocks):
            sequence.block_ids.append(self._take_block())

    def _take_block(self) -> int:
        """The next free block, with its content forgotten."""
        block = self.pool.take()
        forgotten = self.index.forget(block)
        if forgotten is not None and self._changes is not None:
            self._changes.append(BlockRemoved(forgotten))
        return block
