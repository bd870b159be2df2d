"""Interfaces of KV caches: of all, of those with slots by position, and of those that count what the cohort holds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import FreeRuns
from blis_sim.engine.kv_cache.prefix_index import ContentIndex
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
        """Empty the prefix cache. Returns False, and changes nothing, while any block is held."""

    @abstractmethod
    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the sequence's beginning, free or in use. Changes nothing."""

    @abstractmethod
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate slots for the next `num_tokens` tokens of a running sequence; False, unchanged, if too few."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request."""

    @abstractmethod
    def evict(self, sequence: Sequence) -> None:
        """Free all blocks of a request that will return; other requests can find the blocks that it can find again."""


class SlotCache(PagedCache):
    """A paged KV cache with prefix caching. One of the configured blocks is vLLM's null block and never handed out."""

    __slots__ = ("_limit_tokens", "enables_caching", "hit_tokens", "index", "queried_tokens", "watermark_blocks")

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.total_kv_blocks - 1, config.block_size_tokens)
        self.enables_caching = config.enable_prefix_caching
        self.watermark_blocks = int(config.watermark_fraction * config.total_kv_blocks)
        """Blocks that an admission must leave free while other sequences run."""
        self.index = ContentIndex()
        self.hit_tokens = 0
        """Prompt tokens found in the cache, counted once per request."""
        self.queried_tokens = 0
        """Prompt tokens looked up, counted once per request."""
        self._limit_tokens = config.limit_tokens

    def forget(self) -> bool:
        if self.num_used_blocks:
            return False
        self.index = ContentIndex()
        return True

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        """Count an admission in the cache's hit rate; a request that was preempted before does not count again."""
        if self.enables_caching and sequence.request.reads_prefix_cache and sequence.num_preemptions == 0:
            self.queried_tokens += sequence.input_tokens + sequence.num_output_tokens
            self.hit_tokens += num_hit_blocks * self.block_size

    def num_found_tokens(self, hits: SequenceOf[int]) -> int:
        """Return the tokens in the cached blocks that were found latest."""
        return len(hits) * self.block_size

    def boundary_tokens(self, sequence: Sequence) -> int:
        """Return where a beginning ends that a request shares with others, if more of it is found in some groups.

        0 without, as where all layers keep the same.
        """
        return 0

    def new_step(self) -> None:
        """Note that a step is about to be composed."""

    @abstractmethod
    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        """Allocate slots for a waiting sequence: the cached blocks `hits` and the next `num_tokens` tokens after them.

        With `whole_must_fit` all it has to compute so far must fit now. While others run, the watermark stays free.
        """

    @abstractmethod
    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable."""

    @abstractmethod
    def withhold(self, num_blocks: int) -> None:
        """Withhold `num_blocks` blocks in total from all sequences, or all free ones."""

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks for `num_tokens` tokens, at most those that one request can ever have."""
        return -(-min(num_tokens, self._limit_tokens) // self.block_size)


class CohortCache(SlotCache):
    """Counts blocks instead of numbering them. Blocks of a cohort member are recorded when it leaves."""

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
