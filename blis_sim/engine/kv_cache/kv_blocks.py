"""The blocks of a KV cache with several groups of layers, as the managers of these groups take and give them back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_table import BlockTable
from blis_sim.engine.kv_cache.content_index import ContentIndex
from blis_sim.engine.sequence import Sequence


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

    def take_one(self) -> int:
        """Take a free block, of which there must be one, and forget what it held."""
        return self.take(1)[0]

    @abstractmethod
    def num_evictable(self, blocks: SequenceOf[int]) -> int:
        """Return how many of these found blocks are free: holding them takes them away from others."""

    @abstractmethod
    def touch(self, blocks: SequenceOf[int]) -> None:
        """Hold found blocks once more."""

    @abstractmethod
    def cache(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int) -> None:
        """Make the blocks in places from `first` up to `end` of a table findable by the content up to their ends.

        The content of a part of them, under which they were known before, is forgotten.
        """

    @abstractmethod
    def cache_part(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        """Keep a block that is full up to the end of identity `hash_index` as one with content."""

    def reports_part(self, group: int, block: int, identity: object) -> bool:
        """Note that a full block with content is named by a part of it, too; whether this is news to a record of it."""
        return False

    @abstractmethod
    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        """Make the block in place `index` of a table findable no more."""

    @abstractmethod
    def is_cached(self, group: int, block: int) -> bool:
        """Return whether an entry of a table is findable."""

    @abstractmethod
    def retire(self, group: int, sequence: Sequence, table: BlockTable, first: int, end: int) -> None:
        """Give back the entries from `first` up to `end` of the table of a request that goes on, the last first.

        Findable ones are the last to be reused, others the first.
        """

    @abstractmethod
    def free(self, group: int, sequence: Sequence, table: BlockTable, returns: bool) -> None:
        """Give back all entries in the same way. `returns`: whether the request will look for the blocks again."""

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
