"""CPU memory behind the KV cache: contents of blocks by identity, the least recently used thrown out first."""

from collections import OrderedDict
from collections.abc import Iterable

from blis_sim.engine.units import Micros

THRASHING_WINDOW_US: Micros = 1000
"""A block fetched this soon after it was stored need not have been moved."""


class CpuTier:
    """Contents of up to `num_blocks` blocks, and what has become of them so far. Every call costs O(1) per block."""

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
        """Give up the place of `identity`, which must be here."""
        del self._stored_at[identity]
