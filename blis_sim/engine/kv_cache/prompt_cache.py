"""The common part of BLIS's two KV caches: prompts that can be found again, and tokens stored one after the other."""

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.paged import PagedCache
from blis_sim.engine.kv_cache.prefix_index import PrefixIndex
from blis_sim.engine.sequence import Sequence


class PromptCache(PagedCache):
    """Blocks for prompts, all or nothing, of which `index` finds those that are full."""

    __slots__ = ("index", "num_hit_blocks", "num_missed_blocks")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.index = PrefixIndex()
        self.num_hit_blocks = 0
        """Blocks claimed because they already held the prompt's beginning."""
        self.num_missed_blocks = 0
        """Blocks newly filled, for prompts and for generated tokens alike."""

    @property
    def hit_tokens(self) -> int:
        """Tokens of blocks claimed instead of filled."""
        return self.num_hit_blocks * self.block_size

    @property
    def queried_tokens(self) -> int:
        """Tokens of all blocks claimed or filled."""
        return (self.num_hit_blocks + self.num_missed_blocks) * self.block_size

    def forget(self) -> bool:
        if self.num_used_blocks:
            return False
        self.index = PrefixIndex()
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        request = sequence.request
        return self.index.longest_prefix(request.blocks, request.input_tokens // self.block_size)

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        if sequence.num_computed_tokens < sequence.request.input_tokens:
            return self.allocate_prompt(sequence, num_tokens)
        return self.allocate_token(sequence)

    @abstractmethod
    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        """Blocks for the next `num_tokens` prompt tokens, on top of `cached` ones claimed on first use.

        False, and nothing changed, when too few are free. Zero tokens do nothing, not even claim `cached`.
        """

    @abstractmethod
    def allocate_token(self, sequence: Sequence) -> bool:
        """Room for one generated token. False, and nothing changed, when it needs a block and none is free."""
