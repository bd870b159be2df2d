"""The paged KV cache: blocks for a request's tokens, shared prefixes, all or nothing."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_pool import BlockPool
from blis_sim.engine.kv_cache.prefix_index import PrefixIndex
from blis_sim.engine.sequence import Sequence


class KVCache:
    """Blocks of `block_size_tokens` tokens for the sequences of one engine.

    Every call either does all it says or changes nothing. A prompt's full blocks and every block filled up token by
    token are registered under their identity and stay findable after release, until the block is reused.
    Cost: O(blocks touched).
    """

    __slots__ = ("block_size_tokens", "index", "num_hit_blocks", "num_missed_blocks", "pool")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self.num_hit_blocks = 0
        """Blocks claimed because they already held the prompt's beginning."""
        self.num_missed_blocks = 0
        """Blocks newly filled, for prompts and for generated tokens alike."""

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        return self.pool.num_used

    @property
    def hit_tokens(self) -> int:
        """Tokens of blocks claimed instead of filled."""
        return self.num_hit_blocks * self.block_size_tokens

    @property
    def queried_tokens(self) -> int:
        """Tokens of all blocks claimed or filled."""
        return (self.num_hit_blocks + self.num_missed_blocks) * self.block_size_tokens

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        self.pool.check()

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        if self.num_used_blocks:
            return False
        self.index = PrefixIndex()
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that already hold the beginning of the prompt: full blocks only, free or in use. Changes nothing."""
        request = sequence.request
        return self.index.longest_prefix(request.blocks, request.input_tokens // self.block_size_tokens)

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        """Blocks for the next `num_tokens` prompt tokens, on top of `cached` ones claimed on first use.

        False, and nothing changed, when the pool has too few. Zero tokens do nothing, not even claim `cached`.
        """
        if num_tokens == 0:
            return True
        size = self.block_size_tokens
        spare = len(sequence.block_ids) * size - sequence.num_stored_tokens
        needed = -(-max(0, num_tokens - spare) // size) + sum(map(self.pool.is_free, cached))
        if needed > self.pool.num_free:
            return False
        self._claim(sequence, cached)
        remaining = num_tokens
        if spare:
            filled = min(spare, remaining)
            self._fill_last(sequence, filled)
            remaining -= filled
        while remaining > 0:
            filled = min(size, remaining)
            self._take_block(sequence, filled)
            if filled == size:
                self._register_last(sequence)
            remaining -= filled
        return True

    def allocate_token(self, sequence: Sequence) -> bool:
        """Room for one generated token. False, and nothing changed, when it needs a block and none is free."""
        if sequence.num_stored_tokens < len(sequence.block_ids) * self.block_size_tokens:
            self._fill_last(sequence, 1)
            return True
        if self.pool.num_free == 0:
            return False
        self._take_block(sequence, 1)
        return True

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back, the last first, so that a prefix outlives its continuation."""
        for block in reversed(sequence.block_ids):
            self.pool.give_back(block)
        sequence.block_ids = []
        sequence.num_stored_tokens = 0

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return: what it can find again, others can too."""
        self.release(sequence)

    def _claim(self, sequence: Sequence, cached: SequenceOf[int]) -> None:
        """Hold full blocks that already have the content that comes next."""
        for block in cached:
            self.pool.share(block)
            sequence.block_ids.append(block)
            sequence.num_stored_tokens += self.block_size_tokens
        self.num_hit_blocks += len(cached)

    def _take_block(self, sequence: Sequence, num_tokens: int) -> None:
        block = self.pool.take()
        self.index.forget(block)
        sequence.block_ids.append(block)
        sequence.num_stored_tokens += num_tokens
        self.num_missed_blocks += 1

    def _fill_last(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_stored_tokens += num_tokens
        if sequence.num_stored_tokens == len(sequence.block_ids) * self.block_size_tokens:
            self._register_last(sequence)

    def _register_last(self, sequence: Sequence) -> None:
        if sequence.blocks_aligned:
            index = len(sequence.block_ids) - 1
            self.index.register(sequence.block_ids[index], sequence.request.blocks.identity(index))
