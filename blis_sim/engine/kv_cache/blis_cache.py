"""BLIS's two paged KV caches: every block by number, and blocks counted; prompts all or nothing, shared prefixes."""

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_pool import BlockPool, FreeRuns
from blis_sim.engine.kv_cache.interface import PagedCache
from blis_sim.engine.kv_cache.prefix_index import PrefixIndex
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


class PromptCache(PagedCache):
    """Allocates whole prompts or nothing; `index` finds full blocks."""

    __slots__ = ("index", "num_hit_blocks", "num_missed_blocks")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.index = PrefixIndex()
        self.num_hit_blocks = 0
        """Blocks claimed because they already held the prompt's beginning."""
        self.num_missed_blocks = 0
        """Blocks newly filled, for prompts and for generated tokens alike."""

    @property
    def hit_tokens(self) -> int:
        """Tokens of blocks claimed instead of filled."""
        return self.num_hit_blocks * self.block_size

    @property
    def queried_tokens(self) -> int:
        """Tokens of all blocks claimed or filled."""
        return (self.num_hit_blocks + self.num_missed_blocks) * self.block_size

    def forget(self) -> bool:
        if self.num_used_blocks:
            return False
        self.index = PrefixIndex()
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        request = sequence.request
        return self.index.longest_prefix(request.blocks, request.input_tokens // self.block_size)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        if sequence.num_computed_tokens < sequence.input_tokens:
            return self.allocate_prompt(sequence, num_tokens)
        return self.allocate_token(sequence)

    @abstractmethod
    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        """Allocate blocks for the next `num_tokens` prompt tokens, on top of `cached` ones claimed on first use.

        Returns False, and changes nothing, when too few are free. Zero tokens do nothing, not even claim `cached`.
        """

    @abstractmethod
    def allocate_token(self, sequence: Sequence) -> bool:
        """Allocate room for one generated token; False, unchanged, when it needs a block and none is free."""


class KVCache(PromptCache):
    """Blocks of `block_size_tokens` tokens for the sequences of one engine.

    Every call either has its whole effect or changes nothing. A prompt's full blocks and every block filled up token by
    token are registered under their identity and stay findable after release, until the block is reused. Cost: O(blocks
    touched).
    """

    __slots__ = ("pool",)

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.pool = BlockPool(num_blocks)

    @property
    def num_used_blocks(self) -> int:
        return self.pool.num_used

    def check(self) -> None:
        self.pool.check()

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        if num_tokens == 0:
            return True
        size = self.block_size
        spare = len(sequence.block_ids) * size - sequence.num_stored_tokens
        needed = -(-max(0, num_tokens - spare) // size) + sum(map(self.pool.is_free, cached))
        if needed > self.pool.num_free:
            return False
        self._claim(sequence, cached)
        remaining = num_tokens
        if spare:
            filled = min(spare, remaining)
            self._fill_last(sequence, filled)
            remaining -= filled
        while remaining > 0:
            filled = min(size, remaining)
            self._take_block(sequence, filled)
            if filled == size:
                self._register_last(sequence)
            remaining -= filled
        return True

    def allocate_token(self, sequence: Sequence) -> bool:
        if sequence.num_stored_tokens < len(sequence.block_ids) * self.block_size:
            self._fill_last(sequence, 1)
            return True
        if self.pool.num_free == 0:
            return False
        self._take_block(sequence, 1)
        return True

    def release(self, sequence: Sequence) -> None:
        """Give the last block back first, so that a prefix outlives its continuation."""
        for block in reversed(sequence.block_ids):
            self.pool.give_back(block)
        sequence.block_ids = []
        sequence.num_stored_tokens = 0

    def evict(self, sequence: Sequence) -> None:
        self.release(sequence)

    def _claim(self, sequence: Sequence, cached: SequenceOf[int]) -> None:
        """Hold full blocks that already have the content that comes next."""
        for block in cached:
            self.pool.share(block)
            sequence.block_ids.append(block)
            sequence.num_stored_tokens += self.block_size
        self.num_hit_blocks += len(cached)

    def _take_block(self, sequence: Sequence, num_tokens: int) -> None:
        block = self.pool.take()
        self.index.forget(block)
        sequence.block_ids.append(block)
        sequence.num_stored_tokens += num_tokens
        self.num_missed_blocks += 1

    def _fill_last(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_stored_tokens += num_tokens
        if sequence.num_stored_tokens == len(sequence.block_ids) * self.block_size:
            self._register_last(sequence)

    def _register_last(self, sequence: Sequence) -> None:
        if sequence.blocks_aligned:
            index = len(sequence.block_ids) - 1
            self.index.register(sequence.block_ids[index], sequence.request.blocks.identity(index))


class CountingPromptCache(PromptCache):
    """Drop-in for `KVCache` with equal results. Cost: O(shareable blocks + runs of free blocks reused).

    Blocks get names when another request may find them, or their own request after a preemption; only prompts are ever
    looked for. All others are counted.
    """

    __slots__ = ("free",)

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.free = FreeRuns(num_blocks)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.free.num_free

    def check(self) -> None:
        self.free.check()

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        if num_tokens == 0:
            return True
        size, free, num_cached = self.block_size, self.free, len(cached)
        spare = sequence.num_blocks * size - sequence.num_stored_tokens
        remaining = max(0, num_tokens - spare)
        new_blocks = -(-remaining // size)
        if new_blocks + num_cached > free.num_free and new_blocks + num_cached - free.num_held(cached) > free.num_free:
            return False
        if num_cached:
            free.hold(cached)
            sequence.named_blocks.extend(cached)
            sequence.num_found_blocks = num_cached
            self.num_hit_blocks += num_cached
        sequence.num_blocks += num_cached + new_blocks
        sequence.num_stored_tokens = stored = sequence.num_stored_tokens + num_cached * size + min(spare, num_tokens)
        self._name_full_blocks(sequence)
        if remaining:
            num_named = 0
            if sequence.blocks_aligned:
                num_named = min(remaining // size, self._last_name(sequence) - len(sequence.named_blocks))
            if num_named > 0:
                self._take_named(sequence, num_named)
                new_blocks -= num_named
            self.take(new_blocks)
            sequence.num_stored_tokens = stored + remaining
        return True

    def allocate_token(self, sequence: Sequence) -> bool:
        if sequence.num_stored_tokens == sequence.num_blocks * self.block_size:
            if self.free.num_free == 0:
                return False
            self.take(1)
            sequence.num_blocks += 1
        sequence.num_stored_tokens += 1
        self._name_full_blocks(sequence)
        return True

    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        """Return the new blocks that a sequence needs for `num_tokens` more tokens."""
        return -(-(sequence.num_stored_tokens + num_tokens) // self.block_size) - sequence.num_blocks

    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        """Count a whole prompt as stored, which no request shares. Returns how many blocks are to be taken for it."""
        sequence.num_stored_tokens = num_tokens
        sequence.num_blocks = num_blocks = -(-num_tokens // self.block_size)
        return num_blocks

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Count the blocks that were taken for `num_tokens` more tokens."""
        sequence.num_stored_tokens = stored = sequence.num_stored_tokens + num_tokens
        sequence.num_blocks = -(-stored // self.block_size)

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""
        if num_blocks:
            self.num_missed_blocks += num_blocks
            lost = self.free.take(num_blocks)
            if lost:
                self.index.forget_all(lost)

    def will_share(self, sequence: Sequence) -> bool:
        """Whether there are blocks that others could find once it has filled them."""
        return sequence.blocks_aligned and len(sequence.named_blocks) < self._num_shared(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request: blocks that only it could find are lost."""
        self.free.free(sequence.num_blocks - len(sequence.named_blocks))
        self._give_back_named(sequence)

    def evict(self, sequence: Sequence) -> None:
        """Free all blocks of a request that will return and look its prompt up."""
        named = len(sequence.named_blocks)
        findable = max(named, self._num_findable(sequence))
        self.free.free(sequence.num_blocks - findable)
        if findable > named:
            self.index.register_all(
                self.free.free_named(findable - named), _identities(sequence.request.blocks, named, findable)
            )
        self._give_back_named(sequence)

    def _num_findable(self, sequence: Sequence) -> int:
        """Full blocks of the prompt it holds, if its blocks are those of its beginning."""
        if not sequence.blocks_aligned:
            return 0
        return min(sequence.num_stored_tokens, sequence.input_tokens) // self.block_size

    def _name_full_blocks(self, sequence: Sequence) -> None:
        """Name the full blocks that may be looked up while they are held."""
        named, last = len(sequence.named_blocks), self._last_name(sequence)
        if named < last and sequence.blocks_aligned:
            last = min(last, sequence.num_stored_tokens // self.block_size)
            if named < last:
                names = self.free.new_names(last - named, references=1)
                self.index.register_all(names, _identities(sequence.request.blocks, named, last))
                sequence.named_blocks.extend(names)

    def _take_named(self, sequence: Sequence, num_blocks: int) -> None:
        """Take `num_blocks` blocks, fill them one after the other with the next tokens of the prompt, and name each.

        The order matters: a block may be named before or after another of the same content is reused.
        """
        named = len(sequence.named_blocks)
        names = self.free.new_names(num_blocks, references=1)
        lost = self.free.take_in_turn(num_blocks)
        self.num_missed_blocks += num_blocks
        self.index.overwrite(names, _identities(sequence.request.blocks, named, named + num_blocks), lost)
        sequence.named_blocks.extend(names)

    def _last_name(self, sequence: Sequence) -> int:
        """Return how many leading blocks get names while they are held."""
        if sequence.num_preemptions:
            # The request may meet its own blocks of before, whose contents need names of their own.
            return max(sequence.input_tokens // self.block_size, self._num_shared(sequence))
        return self._num_shared(sequence)

    def _num_shared(self, sequence: Sequence) -> int:
        """Return how many leading blocks others may find: generated ones too, but not where each is a single token.

        BLIS gives a block its name when a token fills it up, not when one is taken and full at once.
        """
        num_shareable = sequence.num_shareable_blocks
        return min(num_shareable, sequence.input_tokens) if self.block_size == 1 else num_shareable

    def _give_back_named(self, sequence: Sequence) -> None:
        self.free.give_back_all(sequence.named_blocks, sequence.num_found_blocks)
        sequence.named_blocks = []
        sequence.num_found_blocks = 0
        sequence.num_blocks = 0
        sequence.num_stored_tokens = 0


def _identities(blocks: BlockIdentities, first: int, stop: int) -> list[object]:
    return list(map(blocks.identity, range(first, stop)))
