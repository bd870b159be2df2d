"""vLLM's KV cache by counting: the same answers as `vllm_cache.py`, at the cost of what can be shared.

Whether a request gets its blocks, what it finds in the cache, and what is evicted when, depends on how many blocks are
free and on the order in which findable ones are reused, never on block numbers. So blocks that only their own request
could ever find again are kept as counts; they get names only when that request is preempted.
"""

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf

from engine.config import EngineConfig
from engine.kv_cache.content_index import ContentIndex
from engine.sequence import Sequence


class CountingKVCache:
    """Drop-in for `VllmKVCache` with equal results. Cost: O(shareable blocks + runs of free blocks reused)."""

    __slots__ = (
        "_block_size",
        "_caches",
        "_free_useless",
        "_freed",
        "_limit_tokens",
        "_next_name",
        "_next_run",
        "_num_free",
        "_num_untouched",
        "_references",
        "_watermark_blocks",
        "hit_tokens",
        "index",
        "num_blocks",
        "queried_tokens",
    )

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size_tokens
        self._caches = config.enable_prefix_caching
        self._watermark_blocks = int(config.watermark_fraction * config.total_kv_blocks)
        self._limit_tokens = config.limit_tokens
        self.num_blocks = config.total_kv_blocks - 1
        self.index = ContentIndex()
        self.hit_tokens = 0
        self.queried_tokens = 0
        self._num_free = self.num_blocks
        self._num_untouched = self.num_blocks
        """Never used; reused after the useless ones and before the freed ones."""
        self._free_useless = 0
        """Given back without findable content: reused first."""
        self._freed: OrderedDict[int, int] = OrderedDict()
        """Runs of freed blocks in the order of reuse: a name and 1, or a negative number and how many nameless ones."""
        self._references: dict[int, int] = {}
        """How many sequences hold each named block; 0 while it is free."""
        self._next_name = 1
        self._next_run = -1

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self._num_free

    @property
    def num_free_blocks(self) -> int:
        return self._num_free

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        freed = sum(self._freed.values())
        assert self._num_free == self._num_untouched + self._free_useless + freed

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Names of the blocks that hold the sequence's beginning, at most all but its last token."""
        found: list[int] = []
        if not self._caches or not sequence.request.reads_prefix_cache:
            return found
        for index in range((sequence.num_tokens - 1) // self._block_size):
            name = self.index.find(sequence.request.blocks.identity(index))
            if name is None:
                break
            found.append(name)
        return found

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        """Count an admission in the cache's hit rate; a request that was preempted before does not count again."""
        if self._caches and sequence.request.reads_prefix_cache and sequence.num_preemptions == 0:
            self.queried_tokens += sequence.num_tokens
            self.hit_tokens += num_hit_blocks * self._block_size

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for the next `num_tokens` tokens of a running sequence. False, and nothing changed, if too few."""
        after = sequence.num_computed_tokens + num_tokens
        needed = self.blocks_for(after) - sequence.num_blocks
        if needed > 0:
            if needed > self._num_free:
                return False
            self.take(needed)
            sequence.num_blocks += needed
        self.register(sequence, min(after, sequence.num_tokens))
        return True

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        """Slots for a waiting sequence: the cached blocks `hits` and the next `num_tokens` tokens after them."""
        references = self._references
        claimed = sum(1 for name in hits if references[name])
        free = self._num_free - (self._watermark_blocks if others_run else 0)
        if whole_must_fit and self.blocks_for(sequence.num_tokens) - claimed > free:
            return False
        after = len(hits) * self._block_size + num_tokens
        blocks = self.blocks_for(after)
        if blocks - claimed > free:
            return False
        for name in hits:
            if references[name] == 0:
                del self._freed[name]
                self._num_free -= 1
            references[name] += 1
        sequence.named_blocks.extend(hits)
        sequence.num_registered_blocks = len(hits)
        sequence.num_blocks = blocks
        self.take(blocks - len(hits))
        self.register(sequence, min(after, sequence.num_tokens))
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable."""
        full = num_tokens // self._block_size
        if not self._caches or full <= sequence.num_registered_blocks:
            return
        blocks = sequence.request.blocks
        for index in range(sequence.num_registered_blocks, min(full, blocks.num_shareable)):
            sequence.named_blocks.append(self._name(blocks.identity(index), references=1))
        sequence.num_registered_blocks = full

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request: what only it could find, nobody will."""
        nameless = sequence.num_registered_blocks - len(sequence.named_blocks)
        if nameless > 0:
            self._freed[self._next_run] = nameless
            self._next_run -= 1
        self._give_back(sequence)

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return and look for them."""
        blocks = sequence.request.blocks
        for index in range(sequence.num_registered_blocks - 1, len(sequence.named_blocks) - 1, -1):
            self._freed[self._name(blocks.identity(index), references=0)] = 1
        self._give_back(sequence)

    def take(self, num_blocks: int) -> None:
        """Take blocks out of the free ones, which must be enough, in the order of reuse."""
        self._num_free -= num_blocks
        if self._free_useless:
            used = min(num_blocks, self._free_useless)
            self._free_useless -= used
            num_blocks -= used
        if self._num_untouched:
            used = min(num_blocks, self._num_untouched)
            self._num_untouched -= used
            num_blocks -= used
        freed = self._freed
        while num_blocks > 0:
            key, count = freed.popitem(last=False)
            if key > 0:
                self.index.forget(key)
                del self._references[key]
            elif count > num_blocks:
                freed[key] = count - num_blocks
                freed.move_to_end(key, last=False)
                return
            num_blocks -= count

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens, no more than one request can ever have."""
        return -(-min(num_tokens, self._limit_tokens) // self._block_size)

    def _name(self, identity: object, references: int) -> int:
        name = self._next_name
        self._next_name += 1
        self._references[name] = references
        self.index.register(name, identity)
        return name

    def _give_back(self, sequence: Sequence) -> None:
        """Free the named blocks, the last first, and the useless rest."""
        references = self._references
        num_shared = 0
        for name in reversed(sequence.named_blocks):
            references[name] -= 1
            if references[name] == 0:
                self._freed[name] = 1
            else:
                num_shared += 1
        self._num_free += sequence.num_blocks - num_shared
        self._free_useless += sequence.num_blocks - max(sequence.num_registered_blocks, len(sequence.named_blocks))
        sequence.named_blocks = []
        sequence.num_blocks = 0
        sequence.num_registered_blocks = 0
