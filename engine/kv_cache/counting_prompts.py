"""BLIS's KV cache by counting: the same answers as `cache.py`, at the cost of what can be shared."""

from collections.abc import Sequence as SequenceOf

from engine.kv_cache.free_runs import FreeRuns
from engine.kv_cache.prefix_index import PrefixIndex
from engine.sequence import Sequence


class CountingPromptCache:
    """Drop-in for `KVCache` with equal results. Cost: O(shareable blocks + runs of free blocks reused).

    Blocks get names when another request may find them, or their own request after a preemption; only prompts are ever
    looked for. All others are counted.
    """

    __slots__ = ("_block_size", "free", "index", "num_hit_blocks", "num_missed_blocks")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self.free = FreeRuns(num_blocks)
        self.index = PrefixIndex()
        self.num_hit_blocks = 0
        self.num_missed_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self.free.num_blocks

    @property
    def num_used_blocks(self) -> int:
        return self.free.num_blocks - self.free.num_free

    @property
    def hit_tokens(self) -> int:
        """Tokens of blocks claimed instead of filled."""
        return self.num_hit_blocks * self._block_size

    @property
    def queried_tokens(self) -> int:
        """Tokens of all blocks claimed or filled."""
        return (self.num_hit_blocks + self.num_missed_blocks) * self._block_size

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        self.free.check()

    def forget(self) -> bool:
        """Let nothing be found any more. False, and nothing changed, while any block is held."""
        if self.num_used_blocks:
            return False
        self.index = PrefixIndex()
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Names of the blocks that hold the beginning of the prompt. Changes nothing."""
        request = sequence.request
        return self.index.longest_prefix(request.blocks, request.input_tokens // self._block_size)

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        """Blocks for the next `num_tokens` prompt tokens, on top of `cached` ones; False when too few are free."""
        if num_tokens == 0:
            return True
        size = self._block_size
        spare = sequence.num_blocks * size - sequence.num_stored_tokens
        new_blocks = -(-max(0, num_tokens - spare) // size)
        if new_blocks + sum(1 for name in cached if not self.free.references[name]) > self.free.num_free:
            return False
        for name in cached:
            self.free.hold(name)
        sequence.named_blocks.extend(cached)
        sequence.num_blocks += len(cached) + new_blocks
        sequence.num_stored_tokens += len(cached) * size + min(spare, num_tokens)
        self.num_hit_blocks += len(cached)
        # Naming a block before or after one of the same content is reused makes a difference: block by block, then.
        self._name_full_blocks(sequence)
        remaining = max(0, num_tokens - spare)
        while remaining > 0 and len(sequence.named_blocks) < self._last_name(sequence):
            self.take(1)
            sequence.num_stored_tokens += min(size, remaining)
            self._name_full_blocks(sequence)
            remaining -= size
        if remaining > 0:
            self.take(-(-remaining // size))
            sequence.num_stored_tokens += remaining
        return True

    def allocate_token(self, sequence: Sequence) -> bool:
        """Room for one generated token; False when it needs a block and none is free."""
        if sequence.num_stored_tokens == sequence.num_blocks * self._block_size:
            if self.free.num_free == 0:
                return False
            self.take(1)
            sequence.num_blocks += 1
        sequence.num_stored_tokens += 1
        self._name_full_blocks(sequence)
        return True

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""
        if num_blocks:
            self.num_missed_blocks += num_blocks
            for name in self.free.take(num_blocks):
                self.index.forget(name)

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request: what only it could find, nobody will."""
        self.free.free(sequence.num_blocks - len(sequence.named_blocks))
        self._give_back_named(sequence)

    def evict(self, sequence: Sequence) -> None:
        """Give all blocks back from a request that will return and look for its prompt."""
        named = len(sequence.named_blocks)
        findable = max(named, self._num_findable(sequence))
        self.free.free(sequence.num_blocks - findable)
        for index in range(findable - 1, named - 1, -1):
            self.free.free_named(self._new_name(sequence, index, references=0))
        self._give_back_named(sequence)

    def _num_findable(self, sequence: Sequence) -> int:
        """Full blocks of the prompt it holds, if its blocks are those of its beginning."""
        if not sequence.blocks_aligned:
            return 0
        return min(sequence.num_stored_tokens, sequence.request.input_tokens) // self._block_size

    def _name_full_blocks(self, sequence: Sequence) -> None:
        """Name those of the prompt's full blocks that may be looked for while they are held."""
        last = self._last_name(sequence)
        if len(sequence.named_blocks) < last:
            for index in range(len(sequence.named_blocks), min(last, self._num_findable(sequence))):
                sequence.named_blocks.append(self._new_name(sequence, index, references=1))

    def _last_name(self, sequence: Sequence) -> int:
        """How many leading blocks get names while they are held."""
        request = sequence.request
        if sequence.num_preemptions:
            # It may meet its own blocks of before: what they hold must be told apart by name.
            return request.input_tokens // self._block_size
        return request.blocks.num_shareable

    def _new_name(self, sequence: Sequence, index: int, references: int) -> int:
        name = self.free.new_name(references)
        self.index.register(name, sequence.request.blocks.identity(index))
        return name

    def _give_back_named(self, sequence: Sequence) -> None:
        for name in reversed(sequence.named_blocks):
            self.free.let_go(name)
        sequence.named_blocks = []
        sequence.num_blocks = 0
        sequence.num_stored_tokens = 0
