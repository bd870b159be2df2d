"""The seam between vLLM's scheduling and its KV cache: slots for tokens, and what is already there."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from blis_sim.engine.kv_cache.content_index import ContentIndex
from blis_sim.engine.sequence import Sequence


class SlotCache(Protocol):
    """A paged KV cache with prefix caching. Every call does all it says or changes nothing."""

    hit_tokens: int
    queried_tokens: int

    @property
    def index(self) -> ContentIndex: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_used_blocks(self) -> int: ...

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        ...

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        ...

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's beginning, at most all but its last token. Changes nothing."""
        ...

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        """Count an admission in the cache's hit rate."""
        ...

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Slots for the next `num_tokens` tokens of a running sequence; False if too few are free."""
        ...

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        """Slots for a waiting sequence: the cached blocks `hits` and the next `num_tokens` tokens after them."""
        ...

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request."""
        ...

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return."""
        ...
