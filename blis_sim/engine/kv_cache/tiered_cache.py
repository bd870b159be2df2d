"""BLIS's KV cache with CPU memory behind it: when blocks go there, and when they are brought back.

Facts: sim/kv/tiered.go. What comes back changes where a prompt is found and how long the step takes, not how many
tokens it computes: those are counted before anything is fetched. A new policy is one class and one row of
`OFFLOAD_POLICIES`.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.blis_cache import KVCache
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

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

    def _note_shift(self, sequence: Sequence) -> None:
        """Before an allocation, whose blocks it may fill."""
        self._shift_tokens = sequence.num_stored_tokens - sequence.num_computed_tokens if sequence.running else 0

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
            if count == most or content not in self.tier:
                break
            self._fetch(content)
            count += 1
        self._pending_us += count * self._transfer_us
        return count

    def _fetch(self, identity: object) -> None:
        self.tier.fetch(identity, self.now)
        block = self.pool.take()
        self.index.forget(block)
        self.index.register(block, identity)
        self.pool.give_back(block)

    def _allocate_after_return(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int]) -> bool:
        """`allocate_prompt` on top of a cached prefix that may be longer than `cached` now, all of which is claimed.

        Where it is not, BLIS claims `cached` although some of it may have been overwritten.
        """
        start = sequence.num_computed_tokens if sequence.running else len(cached) * self.block_size
        prefix = self.cached_prefix(sequence)
        missing = start + num_tokens - len(prefix) * self.block_size
        if missing >= num_tokens:
            return super().allocate_prompt(sequence, num_tokens, cached)
        returned = prefix[len(sequence.block_ids) :]
        if missing > 0:
            return super().allocate_prompt(sequence, missing, returned)
        self._claim(sequence, returned)
        return True

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


OFFLOAD_POLICIES: dict[str, Callable[[int, int, CpuTierConfig], TieredKVCache]] = {
    "mirror": MirroringKVCache,
    "threshold": OffloadingKVCache,
}
