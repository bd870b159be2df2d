"""CPU memory behind vLLM's KV cache, as its OffloadingConnector keeps it, and the cache that loads prompts from there.

Facts: vllm/v1/kv_offload/cpu/manager.py and policies/lru.py.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.offloading import OffloadCounters
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class Lookup(Enum):
    """State of a block in CPU memory."""

    MISS = 0
    HIT = 1
    PENDING = 2
    """The block is on its way there."""


@dataclass(slots=True)
class RequestUse:
    """The blocks that one request has used of CPU memory."""

    rank: int = 0
    """Recency of the request, the larger the later; 0 before it has used any."""
    positions: dict[object, int] = field(default_factory=dict)
    """The index of each of the blocks in the request."""


class OffloadTier:
    """Up to `num_blocks` blocks. The request that used a block last decides when it is evicted, its last blocks first.

    Blocks that are on their way in either direction stay.
    """

    __slots__ = (
        "_counters",
        "_heap",
        "_next_rank",
        "_num_written",
        "_numbers",
        "_pins",
        "_ranks",
        "_ready_at",
        "num_blocks",
    )

    def __init__(self, num_blocks: int, counters: OffloadCounters | None = None) -> None:
        self.num_blocks = num_blocks
        self._counters = counters or OffloadCounters()
        self._num_written = 0
        self._ready_at: dict[object, Micros | None] = {}
        """For each block when it has arrived; None before that is known."""
        self._ranks: dict[object, tuple[int, int]] = {}
        self._pins: dict[object, int] = {}
        """Loads and stores under way, by block."""
        self._heap: list[tuple[tuple[int, int], int, object]] = []
        self._numbers = count()
        self._next_rank = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def lookup(self, identity: object) -> Lookup:
        """Return the state of a block."""
        if identity not in self._ranks:
            return Lookup.MISS
        return Lookup.HIT if self._ready_at[identity] is not None else Lookup.PENDING

    def store(self, identities: SequenceOf[object], first: int, use: RequestUse) -> list[object] | None:
        """Make room for those of a request's blocks, from index `first` on, that are not here. Returns these blocks.

        Blocks that are here count as used by the request. None, and nothing stored, where too few can be evicted.
        """
        new = [identity for identity in identities if identity not in self._ranks]
        self._use(identities, first, use)
        if new:
            self._counters.allocated_chunks.observe(len(new))
        num_lacking = len(self._ranks) + len(new) - self.num_blocks
        if num_lacking > 0 and not self._evict(num_lacking, set(identities)):
            self._counters.num_allocation_failures += 1
            return None
        self._num_written += len(new)
        absent = set(new)
        for index, identity in enumerate(identities, first):
            if identity in absent:
                self._ready_at[identity] = None
                self._ranks[identity] = (use.rank, -index)
                self._pin(identity)
        return new

    def stored(self, identities: Iterable[object], at: Micros) -> None:
        """Note that blocks have arrived."""
        for identity in identities:
            self._ready_at[identity] = at
            self._num_written -= 1
            self.unpin(identity)

    def note_usage(self) -> None:
        """Count the blocks on their way, as vLLM does in every step."""
        counters = self._counters
        counters.num_blocks, counters.num_pinned, counters.num_written = (
            self.num_blocks,
            len(self._pins),
            self._num_written,
        )

    def load(self, identities: SequenceOf[object], first: int, use: RequestUse) -> None:
        """Keep blocks that are being loaded; `unpin` ends that."""
        for identity in identities:
            self._pin(identity)
        self._use(identities, first, use)

    def finish(self, use: RequestUse) -> None:
        """Let the blocks of a request that has ended be the most recently used, its first one before all others."""
        for identity in sorted(use.positions, key=use.positions.__getitem__, reverse=True):
            if identity in self._ranks:
                self._next_rank += 1
                self._rank(identity, (self._next_rank, 0))

    def _use(self, identities: SequenceOf[object], first: int, use: RequestUse) -> None:
        """Note blocks that a request uses for the first time, those that are on their way left out."""
        for index, identity in enumerate(identities, first):
            if identity in use.positions or (identity in self._ranks and self._ready_at[identity] is None):
                continue
            if not use.rank:
                self._next_rank += 1
                use.rank = self._next_rank
            use.positions[identity] = index
            rank = (use.rank, -index)
            if identity in self._ranks and self._ranks[identity] < rank:
                self._rank(identity, rank)

    def _rank(self, identity: object, rank: tuple[int, int]) -> None:
        self._ranks[identity] = rank
        if identity not in self._pins:
            heappush(self._heap, (rank, next(self._numbers), identity))

    def _pin(self, identity: object) -> None:
        self._pins[identity] = self._pins.get(identity, 0) + 1

    def unpin(self, identity: object) -> None:
        """Let a block be evicted once nothing else is under way with it."""
        if self._pins[identity] > 1:
            self._pins[identity] -= 1
            return
        del self._pins[identity]
        heappush(self._heap, (self._ranks[identity], next(self._numbers), identity))

    def _evict(self, num_blocks: int, protected: set[object]) -> bool:
        """Evict `num_blocks` blocks, none of them `protected`; False, unchanged, where there are fewer."""
        chosen: list[object] = []
        kept: list[tuple[tuple[int, int], int, object]] = []
        seen: set[object] = set()
        while self._heap and len(chosen) < num_blocks:
            entry = heappop(self._heap)
            rank, _, identity = entry
            if self._ranks.get(identity) != rank or identity in self._pins or identity in seen:
                continue
            seen.add(identity)
            if identity in protected:
                kept.append(entry)
            else:
                chosen.append(identity)
                kept.append(entry)
        is_enough = len(chosen) == num_blocks
        if is_enough:
            for identity in chosen:
                del self._ranks[identity], self._ready_at[identity]
        for entry in kept:
            if entry[2] in self._ranks:
                heappush(self._heap, entry)
        return is_enough


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
