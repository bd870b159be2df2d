"""The interface of a KV cache, beyond slots, by which sequences that only decode can be kept as sums."""

from abc import abstractmethod

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.free_runs import FreeRuns
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.sequence import Sequence


class CohortCache(SlotCache):
    """Blocks by counting. What a member of the cohort holds is written down when it leaves."""

    __slots__ = ("free",)

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.free = FreeRuns(self.num_blocks)

    @abstractmethod
    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""

    @abstractmethod
    def will_share(self, sequence: Sequence) -> bool:
        """Whether there are blocks that others could find once it has filled them."""

    @abstractmethod
    def grow_to(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """Count what has been taken for `num_tokens` tokens, of which the first `num_known_tokens` can be found."""

    @abstractmethod
    def release_grown(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """`grow_to` and `release`, in one call."""

    @abstractmethod
    def may_fit(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether a waiting sequence may find room before any block is given back."""

    @abstractmethod
    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        """Count a prompt that no request shares as stored. Returns how many blocks are to be taken for it."""
