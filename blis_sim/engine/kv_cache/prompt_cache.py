"""The seam between BLIS's batch formation and its KV cache."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from blis_sim.engine.kv_cache.prefix_index import PrefixIndex
from blis_sim.engine.sequence import Sequence


class PromptCache(Protocol):
    """A paged KV cache whose prompts can be found again. Every call does all it says or changes nothing."""

    num_hit_blocks: int
    num_missed_blocks: int

    @property
    def index(self) -> PrefixIndex: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_used_blocks(self) -> int: ...

    @property
    def hit_tokens(self) -> int: ...

    @property
    def queried_tokens(self) -> int: ...

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        ...

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        ...

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that already hold the beginning of the prompt. Changes nothing."""
        ...

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        """Blocks for the next `num_tokens` prompt tokens, on top of `cached` ones; False when too few are free."""
        ...

    def allocate_token(self, sequence: Sequence) -> bool:
        """Room for one generated token; False when it needs a block and none is free."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request."""
        ...

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return."""
        ...
