"""The paged KV cache: blocks for a request's tokens, shared prefixes, all or nothing."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_pool import BlockPool
from blis_sim.engine.kv_cache.prompt_cache import PromptCache
from blis_sim.engine.sequence import Sequence


class KVCache(PromptCache):
    """Blocks of `block_size_tokens` tokens for the sequences of one engine.

    Every call either has its whole effect or changes nothing. A prompt's full blocks and every block filled up token by
    token are registered under their identity and stay findable after release, until the block is reused. Cost: O(blocks
    touched).
    """

    __slots__ = ("pool",)

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        super().__init__(num_blocks, block_size_tokens)
        self.pool = BlockPool(num_blocks)

    @property
    def num_used_blocks(self) -> int:
        return self.pool.num_used

    def check(self) -> None:
        self.pool.check()

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        if num_tokens == 0:
            return True
        size = self.block_size
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
        if sequence.num_stored_tokens < len(sequence.block_ids) * self.block_size:
            self._fill_last(sequence, 1)
            return True
        if self.pool.num_free == 0:
            return False
        self._take_block(sequence, 1)
        return True

    def release(self, sequence: Sequence) -> None:
        """Give the last block back first, so that a prefix outlives its continuation."""
        for block in reversed(sequence.block_ids):
            self.pool.give_back(block)
        sequence.block_ids = []
        sequence.num_stored_tokens = 0

    def evict(self, sequence: Sequence) -> None:
        self.release(sequence)

    def _claim(self, sequence: Sequence, cached: SequenceOf[int]) -> None:
        """Hold full blocks that already have the content that comes next."""
        for block in cached:
            self.pool.share(block)
            sequence.block_ids.append(block)
            sequence.num_stored_tokens += self.block_size
        self.num_hit_blocks += len(cached)

    def _take_block(self, sequence: Sequence, num_tokens: int) -> None:
        block = self.pool.take()
        self.index.forget(block)
        sequence.block_ids.append(block)
        sequence.num_stored_tokens += num_tokens
        self.num_missed_blocks += 1

    def _fill_last(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_stored_tokens += num_tokens
        if sequence.num_stored_tokens == len(sequence.block_ids) * self.block_size:
            self._register_last(sequence)

    def _register_last(self, sequence: Sequence) -> None:
        if sequence.blocks_aligned:
            index = len(sequence.block_ids) - 1
            self.index.register(sequence.block_ids[index], sequence.request.blocks.identity(index))
