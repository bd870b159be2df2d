"""BLIS's paged KV caches: blocks by number or counted, and with CPU memory behind them."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from blis_sim.engine.kv_cache.block_pool import BlockPool, FreeBlockRuns, PagedCache, PrefixIndex
from blis_sim.engine.offloading import ChainedBlocks, CpuTierConfig, OffloadChain
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

# BLIS's two paged KV caches: every block by number, and blocks counted; prompts all or nothing, shared prefixes.


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
    token are registered under their identity. They stay findable after release, until the block is reused. Cost:
    O(blocks touched).
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
        if not sequence.block_ids:
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
        self.free = FreeBlockRuns(num_blocks)

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


# BLIS's KV cache with CPU memory behind it: when blocks go there, and when they are brought back.
#
# Facts: sim/kv/tiered.go. What comes back changes where a prompt is found and how long the step takes, not how many
# tokens it computes: those are counted before anything is fetched. A new policy is one class and one row of
# `OFFLOAD_POLICIES`.

THRASHING_WINDOW_US: Micros = 1000
"""A block fetched this soon after it was stored need not have been moved."""


class CpuTier:
    """Contents of up to `num_blocks` blocks in CPU memory, and counters. Every call costs O(1) per block."""

    __slots__ = ("_stored_at", "num_blocks", "num_evicted", "num_fetched", "num_stored", "num_thrashed")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_stored = 0
        self.num_evicted = 0
        """Thrown out to make room for others."""
        self.num_fetched = 0
        self.num_thrashed = 0
        """Fetched no later than `THRASHING_WINDOW_US` after they were stored."""
        self._stored_at: OrderedDict[object, Micros] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored_at)

    def __contains__(self, identity: object) -> bool:
        return identity in self._stored_at

    def keep(self, identities: Iterable[object], at: Micros) -> None:
        """Make each of `identities` the most recently used, in this order; what was not here is stored."""
        stored_at, move_to_end = self._stored_at, self._stored_at.move_to_end
        for identity in identities:
            if identity in stored_at:
                move_to_end(identity)
                continue
            if len(stored_at) >= self.num_blocks:
                stored_at.popitem(last=False)
                self.num_evicted += 1
            stored_at[identity] = at
            self.num_stored += 1

    def fetch(self, identity: object, at: Micros) -> None:
        """Read the content of `identity`, which must be here; it becomes the most recently used."""
        self._stored_at.move_to_end(identity)
        self.num_fetched += 1
        if at - self._stored_at[identity] <= THRASHING_WINDOW_US:
            self.num_thrashed += 1

    def discard(self, identity: object) -> None:
        """Remove `identity`, which must be here."""
        del self._stored_at[identity]


MAX_PREEMPTIONS = 100
"""Preemptions after which a request fetches no more: what it fetched may be what leaves it too few blocks, again and
again."""


class DisplacedBlock(NamedTuple):
    """A block after other content than in its request: prompts lead there by detours only, but it takes a place."""

    after: Hashable
    """The last block before it that is where it should be; None without any."""
    distance: int
    """Number of blocks after that one."""
    position: int
    """Position of its first token in the request."""
    first: Hashable
    last: Hashable
    """The blocks that its first and last token should be part of."""


def content_after(before: object, position: int, size: int, blocks: BlockIdentities) -> object:
    """Return the identity of a block of `size` tokens from `position` of a request on, after a block with identity
    `before`.

    Blocks are identified by chains: as themselves after what should come before them, else as displaced.
    """
    index = position // size
    if position % size == 0 and before == (blocks.identity(index - 1) if index else None):
        return blocks.identity(index)
    after, distance = (before.after, before.distance + 1) if isinstance(before, DisplacedBlock) else (before, 1)
    return DisplacedBlock(
        after, distance, position, blocks.identity(index), blocks.identity((position + size - 1) // size)
    )


class TieredKVCache(KVCache):
    """A cache whose blocks can return from CPU memory. Subclasses decide when they go there, and when they return."""

    __slots__ = ("_pending_us", "_shift_tokens", "_transfer_us", "now", "num_misses_in_tier", "tier")

    def __init__(self, num_blocks: int, block_size_tokens: int, config: CpuTierConfig) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.tier = CpuTier(config.num_blocks)
        self.now: Micros = 0
        """Start of the step under way; the scheduler sets it."""
        self.num_misses_in_tier = 0
        """Allocations that failed and found nothing to bring back."""
        self._transfer_us = config.transfer_us(block_size_tokens)
        self._pending_us: Micros = 0
        self._shift_tokens = 0
        """Distance of the tokens being stored from the place of their position."""

    @property
    def queried_tokens(self) -> int:
        return (self.num_hit_blocks + self.num_missed_blocks + self.num_misses_in_tier) * self.block_size

    @property
    @abstractmethod
    def thrashing_rate(self) -> float:
        """Share of the stored blocks whose way to CPU memory was of no use."""

    def check(self) -> None:
        super().check()
        assert len(self.tier) <= self.tier.num_blocks

    def take_transfer_us(self) -> Micros:
        """Return the time of all transfers since the last call, by which the step under way takes longer."""
        pending, self._pending_us = self._pending_us, 0
        return pending

    @abstractmethod
    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        """Process a step computed by `running`, all of which still hold their blocks."""

    def _note_shift(self, sequence: Sequence, cached: SequenceOf[int] = ()) -> None:
        """Before an allocation, whose blocks it may fill."""
        start = sequence.num_computed_tokens if sequence.running else len(cached) * self.block_size
        self._shift_tokens = sequence.num_stored_tokens - start if sequence.block_ids else 0

    def _bring_back(self, sequence: Sequence, cached: SequenceOf[int]) -> int:
        """Copy those of the prompt's blocks that follow what it has to free GPU blocks; return how many.

        The blocks join the end of the free list, to be found there. The front of it is overwritten, and that may be
        `cached`.
        """
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            return 0
        size, blocks, owned = self.block_size, sequence.request.blocks, sequence.block_ids
        known = cached if len(cached) > len(owned) else owned
        content = self.index.identity_of(known[-1]) if known else None
        most, count = self.pool.num_free, 0
        for index in range(len(known), sequence.input_tokens // size):
            content = content_after(content, index * size, size, blocks)
            if self.index.block_of(content) is not None:
                continue
            if count == most or not self.has_behind(content):
                break
            self._fetch(content)
            count += 1
        self._pending_us += count * self._transfer_us
        return count

    def has_behind(self, identity: object) -> bool:
        """Whether a block can be brought back at once."""
        return identity in self.tier

    def _fetch(self, identity: object) -> None:
        self.tier.fetch(identity, self.now)
        self._take_back(identity)

    def _take_back(self, identity: object) -> None:
        """Hold a content in a free GPU block, at the end of the free list."""
        block = self.pool.take()
        self.index.forget(block)
        self.index.register(block, identity)
        self.pool.give_back(block)

    def _allocate_after_return(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int]) -> bool:
        """`allocate_prompt` on top of a cached prefix that may be longer than `cached` now, and is claimed then.

        No more of it is claimed than holds these tokens. It stays claimed where the rest finds no room, also by a
        sequence that waits. Where it is not longer, BLIS claims `cached` although some of it may have been overwritten.
        """
        start = sequence.num_computed_tokens if sequence.running else len(cached) * self.block_size
        prefix = self.cached_prefix(sequence)[: -(-(start + num_tokens) // self.block_size)]
        missing = start + num_tokens - len(prefix) * self.block_size
        if missing >= num_tokens:
            return super().allocate_prompt(sequence, num_tokens, cached)
        self._claim(sequence, prefix[len(sequence.block_ids) :])
        self._shift_tokens = sequence.num_stored_tokens - len(prefix) * self.block_size
        return missing <= 0 or super().allocate_prompt(sequence, missing)

    def _register_last(self, sequence: Sequence) -> None:
        size, place = self.block_size, len(sequence.block_ids) - 1
        before = self.index.identity_of(sequence.block_ids[place - 1]) if place else None
        content = content_after(before, place * size - self._shift_tokens, size, sequence.request.blocks)
        self.index.register(sequence.block_ids[place], content)


class MirroringKVCache(TieredKVCache):
    """All blocks of running requests are copied to CPU memory, and looked up there before every allocation.

    Cost: O(blocks held) in every step.
    """

    __slots__ = ()

    @property
    def thrashing_rate(self) -> float:
        return self.tier.num_evicted / self.tier.num_stored if self.tier.num_stored else 0.0

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        self._note_shift(sequence, cached)
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


class ChainedKVCache(MirroringKVCache):
    """As `MirroringKVCache`, with CPU memory that has devices behind it. No transfer lengthens a step."""

    __slots__ = ("chained",)

    def __init__(self, num_blocks: int, block_size_tokens: int, chain: OffloadChain) -> None:
        super().__init__(num_blocks, block_size_tokens, CpuTierConfig(chain.num_blocks))
        self.chained = ChainedBlocks(chain)
        self._transfer_us = 0

    @property
    def thrashing_rate(self) -> float:
        return self.chained.num_refused / self.chained.num_promotions if self.chained.num_promotions else 0.0

    def has_behind(self, identity: object) -> bool:
        return identity in self.chained

    def _fetch(self, identity: object) -> None:
        self.chained.touch(identity)
        self.tier.num_fetched += 1
        self._take_back(identity)

    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        size, prompt_only = self.block_size, self.chained.chain.prompt_only
        for sequence in running:
            held = sequence.block_ids
            if prompt_only:
                held = held[: min(len(held) * size, sequence.input_tokens) // size]
            self.chained.mirror(self.index.identities_of(held), self.now)
        self.tier.num_stored, self.tier.num_evicted = self.chained.num_stored, self.chained.num_evicted


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
        self._note_shift(sequence, cached)
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


OFFLOAD_POLICIES: dict[str, Callable[[int, int, CpuTierConfig], TieredKVCache]] = {
    "mirror": MirroringKVCache,
    "threshold": OffloadingKVCache,
}
