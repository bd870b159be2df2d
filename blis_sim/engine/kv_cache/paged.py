"""The interface of every KV cache that schedulers use, whatever its rules and its way of keeping blocks."""

from abc import ABC, abstractmethod

from blis_sim.engine.sequence import Sequence


class PagedCache(ABC):
    """Blocks of a fixed number of tokens. Every call has its whole effect or changes nothing."""

    __slots__ = ("block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size_tokens

    @property
    @abstractmethod
    def num_used_blocks(self) -> int: ...

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""

    @abstractmethod
    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""

    @abstractmethod
    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's beginning, free or in use. Changes nothing."""

    @abstractmethod
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for the next `num_tokens` tokens of a running sequence. False, and nothing changed, if too few."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request."""

    @abstractmethod
    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return: what it can find again, others can too."""
