"""CPU memory behind vLLM's KV cache, as its OffloadingConnector keeps it.

Facts: vllm/v1/kv_offload/cpu/manager.py and policies/lru.py.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from blis_sim.engine.offloading import OffloadCounters
from blis_sim.engine.units import Micros

Place: TypeAlias = tuple[int, int]
"""Where a block ends in its request, in tokens, and the group of layers whose KV it holds."""


class Lookup(Enum):
    """State of a block in CPU memory."""

    MISS = 0
    HIT = 1
    PENDING = 2
    """The block is on its way there."""
    RETRY = 3
    """A device behind CPU memory has not answered yet whether it holds the block."""


@dataclass(slots=True)
class RequestUse:
    """The blocks that one request has used of CPU memory."""

    rank: int = 0
    """Recency of the request, the larger the later; 0 before it has used any."""
    places: dict[object, Place] = field(default_factory=dict)
    """The place of each of the blocks in the request."""
    number: int = 0
    """Number of the request among those that have asked devices behind CPU memory; 0 before it has."""
    counted: dict[tuple[int, object], Micros] | None = field(default_factory=dict)
    """For tiers and blocks whose look-ups were counted -1, or the instant from which an answer is awaited.

    None after the first step of the request."""


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
        "changed",
        "moved",
        "num_blocks",
        "num_released",
    )

    def __init__(self, num_blocks: int, counters: OffloadCounters | None = None, *, notes_moves: bool = False) -> None:
        self.num_blocks = num_blocks
        self.moved: list[tuple[bool, list[object]]] | None = [] if notes_moves else None
        """Blocks that have come (True) or left together, where this is noted; whoever reads them clears the list."""
        self.changed: list[object] = []
        """Blocks that a look-up may find in another state than before; whoever reads them clears the list."""
        self.num_released = 0
        """Times that a block under way became one that may leave."""
        self._counters = counters or OffloadCounters()
        self._num_written = 0
        self._ready_at: dict[object, Micros | None] = {}
        """For each block when it has arrived; None before that is known."""
        self._ranks: dict[object, tuple[int, int, int]] = {}
        self._pins: dict[object, int] = {}
        """Loads and stores under way, by block."""
        self._heap: list[tuple[tuple[int, int, int], int, object]] | None = None
        """Blocks that may leave, with ranks of which some are stale; None before any has to leave."""
        self._numbers = count()
        self._next_rank = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def lookup(self, identity: object) -> Lookup:
        """Return the state of a block."""
        if identity not in self._ranks:
            return Lookup.MISS
        return Lookup.HIT if self._ready_at[identity] is not None else Lookup.PENDING

    def store(self, identities: SequenceOf[object], places: SequenceOf[Place], use: RequestUse) -> list[object] | None:
        """Make room for those of a request's blocks at `places` that are not here. Returns these blocks.

        Blocks that are here count as used by the request. None, and nothing stored, where too few can be evicted.
        """
        new = [identity for identity in identities if identity not in self._ranks]
        self._note_use(identities, places, use)
        if new:
            self._counters.allocated_chunks.observe(len(new))
        num_lacking = len(self._ranks) + len(new) - self.num_blocks
        if num_lacking > 0 and not self._evict_blocks(num_lacking, set(identities)):
            self._counters.num_allocation_failures += 1
            return None
        self._num_written += len(new)
        absent = set(new)
        for identity, (num_tokens, group) in zip(identities, places, strict=True):
            if identity in absent:
                self._ready_at[identity] = None
                self._ranks[identity] = (use.rank, -num_tokens, group)
                self.pin(identity)
        self.changed += new
        return new

    def stored(self, identities: SequenceOf[object], at: Micros) -> None:
        """Note that blocks have arrived."""
        if self.moved is not None:
            self.moved.append((True, list(identities)))
        self.changed += identities
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

    def load(self, identities: SequenceOf[object], places: SequenceOf[Place], use: RequestUse) -> None:
        """Keep blocks that are being loaded; `unpin` ends that."""
        for identity in identities:
            self.pin(identity)
        self._note_use(identities, places, use)

    def finish(self, use: RequestUse) -> None:
        """Let the blocks of a request that has ended be the most recently used, its first one before all others."""
        for identity in sorted(use.places, key=use.places.__getitem__, reverse=True):
            if identity in self._ranks:
                self._next_rank += 1
                self._set_rank(identity, (self._next_rank, 0, 0))
        if self._heap is not None and len(self._heap) > 2 * len(self._ranks) + 64:
            self._heap = None  # most entries are stale

    def _note_use(self, identities: SequenceOf[object], places: SequenceOf[Place], use: RequestUse) -> None:
        """Note blocks that a request uses for the first time, those that are on their way left out."""
        for identity, place in zip(identities, places, strict=True):
            if identity in use.places or (identity in self._ranks and self._ready_at[identity] is None):
                continue
            if not use.rank:
                self._next_rank += 1
                use.rank = self._next_rank
            use.places[identity] = place
            rank = (use.rank, -place[0], place[1])
            if identity in self._ranks and self._ranks[identity] < rank:
                self._set_rank(identity, rank)

    def _set_rank(self, identity: object, rank: tuple[int, int, int]) -> None:
        self._ranks[identity] = rank
        if self._heap is not None and identity not in self._pins:
            heappush(self._heap, (rank, next(self._numbers), identity))

    def pin(self, identity: object) -> None:
        """Keep a block until `unpin` is called once for each call."""
        self._pins[identity] = self._pins.get(identity, 0) + 1

    def unpin(self, identity: object) -> None:
        """Let a block be evicted once nothing else is under way with it."""
        if self._pins[identity] > 1:
            self._pins[identity] -= 1
            return
        del self._pins[identity]
        self.num_released += 1
        if self._heap is not None:
            heappush(self._heap, (self._ranks[identity], next(self._numbers), identity))

    def _may_leave(self) -> list[tuple[tuple[int, int, int], int, object]]:
        """Return the heap of blocks that may leave, made anew where there is none."""
        heap = self._heap
        if heap is None:
            pins = self._pins
            numbers, ranks = self._numbers, self._ranks.items()
            self._heap = heap = [(rank, next(numbers), identity) for identity, rank in ranks if identity not in pins]
            heapify(heap)
        return heap

    def _evict_blocks(self, num_blocks: int, protected: set[object]) -> bool:
        """Evict `num_blocks` blocks, none of them `protected`; False, unchanged, where there are fewer."""
        chosen: list[object] = []
        kept: list[tuple[tuple[int, int, int], int, object]] = []
        seen: set[object] = set()
        heap = self._may_leave()
        while heap and len(chosen) < num_blocks:
            entry = heappop(heap)
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
            if self.moved is not None:
                self.moved.append((False, chosen))
            self.changed += chosen
            for identity in chosen:
                del self._ranks[identity], self._ready_at[identity]
        for entry in kept:
            if entry[2] in self._ranks:
                heappush(heap, entry)
        return is_enough
