"""The blocks of a KV cache with several groups of layers, as the managers of these groups take and give them back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.content_index import ContentIndex
from blis_sim.engine.sequence import Sequence

NULL = 0
"""Stands in block tables for a block that is not needed any more, or has never been. It is never handed out."""


class KVBlocks(ABC):
    """One pool for all groups, and for each group an index of what can be found in its blocks.

    An entry of a block table is a number of the pool's, with `NULL` for none.
    """

    __slots__ = ("indexes",)

    def __init__(self, num_groups: int) -> None:
        self.indexes = [ContentIndex() for _ in range(num_groups)]

    @property
    @abstractmethod
    def num_free(self) -> int: ...

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""

    @abstractmethod
    def take(self, num_blocks: int) -> list[int]:
        """Take free blocks, of which there must be enough, and forget what they held."""

    @abstractmethod
    def num_evictable(self, blocks: SequenceOf[int]) -> int:
        """Return how many of these found blocks are free: holding them takes them away from others."""

    @abstractmethod
    def touch(self, blocks: SequenceOf[int]) -> None:
        """Hold found blocks once more."""

    @abstractmethod
    def cache(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        """Make the block in place `index` of a table findable under identity `hash_index` of its request.

        What it was findable under before, the content of an earlier prefix, is forgotten.
        """

    @abstractmethod
    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        """Make the block in place `index` of a table findable no more."""

    @abstractmethod
    def is_cached(self, group: int, block: int) -> bool:
        """Return whether an entry of a table is findable."""

    @abstractmethod
    def free(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int, returns: bool) -> None:
        """Give back the entries from `first` up to `end` of a table, the last first.

        Findable ones are the last to be reused, others the first. `returns` says whether the request goes on or
        comes back, and so may look for them.
        """

    @abstractmethod
    def put_back(self, block: int) -> None:
        """Give back a block that was taken and never used: it is the first to be reused."""

    def forget_all(self) -> None:
        """Let nothing be found any more."""
        self.indexes = [ContentIndex() for _ in self.indexes]

    def find(self, groups: SequenceOf[int], identity: object) -> list[int] | None:
        """Return the block with a content for each of `groups`; None if any of them lacks it."""
        found: list[int] = []
        for group in groups:
            block = self.indexes[group].find(identity)
            if block is None:
                return None
            found.append(block)
        return found
