"""The blocks of several groups by counting: those that only their own request could ever find again have no number."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.free_runs import FreeRuns
from blis_sim.engine.kv_cache.kv_blocks import NULL, KVBlocks
from blis_sim.engine.sequence import Sequence

PLAIN = -1
"""An entry that nothing can find."""
OWN = -2
"""An entry that only its own request could find, after a preemption."""
TAIL = -3
"""The end of a prompt inside of a block: an entry that is kept like findable ones though no request looks for it."""


class CountedBlocks(KVBlocks):
    """Gives the same results as `NumberedBlocks`, without numbers for what is not shared.

    Entries that another request may find have names, as has everything that a request gives back before its end.
    """

    __slots__ = ("_caches", "_group_of", "_hash_blocks", "free_runs")

    def __init__(self, num_blocks: int, hash_blocks: SequenceOf[int], runs: FreeRuns) -> None:
        """`hash_blocks` has for each group how many identities one of its blocks spans."""
        super().__init__(len(hash_blocks))
        self.free_runs = runs
        self._hash_blocks = list(hash_blocks)
        self._group_of: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return self.free_runs.num_free

    def check(self) -> None:
        self.free_runs.check()

    def take(self, num_blocks: int) -> list[int]:
        self.take_away(num_blocks)
        return [PLAIN] * num_blocks

    def take_away(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""
        runs = self.free_runs
        if num_blocks <= runs.num_next:
            runs.num_next -= num_blocks
            runs.num_free -= num_blocks
            return
        for name in runs.take(num_blocks):
            group = self._group_of.pop(name, -1)
            if group >= 0:
                self.indexes[group].forget(name)

    def num_evictable(self, blocks: SequenceOf[int]) -> int:
        references = self.free_runs.references
        return sum(1 for block in blocks if block > 0 and references[block] == 0)

    def touch(self, blocks: SequenceOf[int]) -> None:
        for block in blocks:
            if block > 0:
                self.free_runs.share(block)

    def cache(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        block = blocks[index]
        if (hash_index + 1) % self._hash_blocks[group] and block <= 0:
            blocks[index] = TAIL
            return
        if block > 0:
            if block in self._group_of:
                self.indexes[group].forget(block)
        elif hash_index < sequence.num_shareable_blocks:
            blocks[index] = block = self.free_runs.new_names(1, references=1)[0]
        else:
            blocks[index] = OWN
            return
        self._group_of[block] = group
        self.indexes[group].register(block, sequence.request.blocks.identity(hash_index))

    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        block = blocks[index]
        if block in (OWN, TAIL):
            blocks[index] = PLAIN
        elif block > 0 and self._group_of.pop(block, -1) >= 0:
            self.indexes[group].forget(block)

    def is_cached(self, group: int, block: int) -> bool:
        return block in (OWN, TAIL) or block in self._group_of

    def free(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int, returns: bool) -> None:
        part = blocks[first:end]
        num_plain, num_own = part.count(PLAIN), part.count(OWN) + part.count(TAIL)
        runs = self.free_runs
        if num_plain + num_own + part.count(NULL) == len(part) and not (num_own and returns):
            if num_own:
                runs.free(num_own)
        else:
            for index in range(end - 1, first - 1, -1):
                self._free_one(group, sequence, blocks[index], index, returns)
        if num_plain:
            runs.free_useless(num_plain)

    def put_back(self, block: int) -> None:
        self.free_runs.free_useless(1)

    def forget_all(self) -> None:
        super().forget_all()
        self._group_of.clear()

    def _free_one(self, group: int, sequence: Sequence, block: int, index: int, returns: bool) -> None:
        """Give back an entry, unless nothing can find it."""
        runs = self.free_runs
        if block > 0:
            if block in self._group_of:
                runs.give_back(block)
            else:
                runs.give_back_unnamed(block)
        elif block == TAIL or (block == OWN and not returns):
            runs.free(1)
        elif block == OWN:
            name = runs.free_named(1)[0]
            self._group_of[name] = group
            identity = sequence.request.blocks.identity((index + 1) * self._hash_blocks[group] - 1)
            self.indexes[group].register(name, identity)
