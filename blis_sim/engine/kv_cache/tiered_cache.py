"""BLIS's KV cache with CPU memory behind it, from which blocks of a prompt are brought back.

Facts: sim/kv/tiered.go. What comes back changes where a prompt is found and how long the step takes, not how many
tokens it computes: those are counted before anything is fetched.
"""

from abc import abstractmethod
from collections.abc import Hashable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.cache import KVCache
from blis_sim.engine.kv_cache.cpu_tier import CpuTier
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

MOST_PREEMPTIONS = 100
"""Preemptions after which a request fetches no more: what it fetched may be what leaves it too few blocks, again and
again."""


class Displaced(NamedTuple):
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
    after, distance = (before.after, before.distance + 1) if isinstance(before, Displaced) else (before, 1)
    return Displaced(after, distance, position, blocks.identity(index), blocks.identity((position + size - 1) // size))


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
        """How far the tokens being stored are behind the place of their position."""

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
        """The time of all transfers since the last call: the step under way takes so much longer."""
        pending, self._pending_us = self._pending_us, 0
        return pending

    @abstractmethod
    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        """Take note of a step computed by `running`, all of which still hold their blocks."""

    def _note_shift(self, sequence: Sequence) -> None:
        """Before an allocation, whose blocks it may fill."""
        self._shift_tokens = sequence.num_stored_tokens - sequence.num_computed_tokens if sequence.running else 0

    def _bring_back(self, sequence: Sequence, cached: SequenceOf[int]) -> int:
        """Copy those of the prompt's blocks that follow what it has to free GPU blocks; return how many.

        The blocks join the end of the free list, to be found there. The front of it is overwritten, and that may be
        `cached`.
        """
        if sequence.num_preemptions >= MOST_PREEMPTIONS:
            return 0
        size, blocks, owned = self.block_size, sequence.request.blocks, sequence.block_ids
        known = cached if len(cached) > len(owned) else owned
        content = self.index.identity_of(known[-1]) if known else None
        most, count = self.pool.num_free, 0
        for index in range(len(known), sequence.request.input_tokens // size):
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
