"""The blocks of several groups: the pool in vLLM's own order, number by number, and blocks that are only counted."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_pool import BlockPool, FreeRuns
from blis_sim.engine.kv_cache.changes import BlockRemoved, CacheChange
from blis_sim.engine.kv_cache.single_type_manager import NULL, PLAIN, BlockTable, KVBlocks
from blis_sim.engine.sequence import Sequence


class NumberedBlocks(KVBlocks):
    """Blocks numbered from 1, each with a count of the requests that hold it. Cost: O(blocks touched)."""

    __slots__ = ("_changes", "_group_of", "_parts", "_spans", "pool")

    def __init__(self, num_blocks: int, spans: list[int], changes: list[CacheChange] | None = None) -> None:
        """`spans` has for each group how many identities one of its blocks spans.

        `changes` receives what is lost of the content."""
        super().__init__(len(spans))
        self._spans = spans
        self.pool = BlockPool(num_blocks + 1)
        null = self.pool.take()
        assert null == NULL
        self._group_of: dict[int, int] = {}
        """The group in whose index a block is."""
        self._changes = changes
        self._parts: dict[int, list[object]] = {}
        """Further identities of full blocks, by which no request finds them: vLLM reports them."""

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def check(self) -> None:
        self.pool.check()

    def take(self, num_blocks: int) -> list[int]:
        taken: list[int] = []
        for _ in range(num_blocks):
            block = self.pool.take()
            group = self._group_of.pop(block, -1)
            if group >= 0:
                self._forget(group, block)
            taken.append(block)
        return taken

    def num_evictable(self, blocks: SequenceOf[int]) -> int:
        return sum(1 for block in blocks if block != NULL and self.pool.is_free(block))

    def touch(self, blocks: SequenceOf[int]) -> None:
        for block in blocks:
            if block != NULL:
                self.pool.share(block)

    def cache(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int) -> None:
        scale = self._spans[group]
        for index in range(first, end):
            self.cache_part(group, sequence, blocks, index, (index + 1) * scale - 1)

    def cache_part(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        block = blocks[index]
        if block == NULL:
            return
        if block in self._group_of:
            self._forget(group, block)
        self._group_of[block] = group
        self.indexes[group].register(block, sequence.request.blocks.identity(hash_index))

    def reports_part(self, group: int, block: int, identity: object) -> bool:
        if self._changes is None or block not in self._group_of:
            return False
        parts = self._parts.setdefault(block, [])
        if identity in parts:
            return False
        parts.append(identity)
        return True

    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        if self._group_of.pop(blocks[index], -1) >= 0:
            self._forget(group, blocks[index])

    def is_cached(self, group: int, block: int) -> bool:
        return block in self._group_of

    def retire(self, group: int, sequence: Sequence, table: BlockTable, first: int, end: int) -> None:
        self._free(table.blocks[first:end])
        table.blocks[first:end] = [NULL] * (end - first)

    def free(self, group: int, sequence: Sequence, table: BlockTable, will_return: bool) -> None:
        self._free(table.blocks)

    def _free(self, blocks: list[int]) -> None:
        useless: list[int] = []
        for block in reversed(blocks):
            if block == NULL:
                continue
            if block in self._group_of:
                self.pool.give_back(block)
            else:
                useless.append(block)
        for block in reversed(useless):
            self.pool.give_back_to_reuse_first(block)

    def put_back(self, block: int) -> None:
        self.pool.give_back_to_reuse_first(block)

    def forget_all(self) -> None:
        super().forget_all()
        self._group_of.clear()
        self._parts.clear()

    def _forget(self, group: int, block: int) -> None:
        identity = self.indexes[group].forget(block)
        if self._changes is not None and identity is not None:
            self._changes.append(BlockRemoved(identity, group))
            self._changes.extend(BlockRemoved(part, group) for part in self._parts.pop(block, ()))


OWN = -2
"""An entry that only its own request could find, after a preemption."""
TAIL = -3
"""The end of a prompt inside of a block: an entry that is kept like findable ones though no request looks for it."""


class CountedBlocks(KVBlocks):
    """Gives the same results as `NumberedBlocks`, without numbers for what is not shared.

    Entries that another request may find have names, as has everything that a request gives back before its end.
    """

    __slots__ = ("_caches", "_group_of", "_hash_blocks", "free_runs")

    def __init__(self, runs: FreeRuns, hash_blocks: SequenceOf[int]) -> None:
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

    def take_one(self) -> int:
        runs = self.free_runs
        if runs.num_next:
            runs.num_next -= 1
            runs.num_free -= 1
        else:
            self.take_away(1)
        return PLAIN

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

    def cache(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int) -> None:
        scale = self._hash_blocks[group]
        num_shared = sequence.num_shareable_blocks // scale
        if first >= num_shared and min(blocks[first:end]) < NULL and max(blocks[first:end]) < NULL:
            blocks[first:end] = [OWN] * (end - first)
            return
        for index in range(first, end):
            block = blocks[index]
            if block == NULL:
                continue
            if block > 0:
                if block in self._group_of:
                    self.indexes[group].forget(block)
            elif index < num_shared:
                blocks[index] = block = self.free_runs.new_names(1, references=1)[0]
            else:
                blocks[index] = OWN
                continue
            self._group_of[block] = group
            self.indexes[group].register(block, sequence.request.blocks.identity((index + 1) * scale - 1))

    def cache_part(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        if blocks[index] == PLAIN:
            blocks[index] = TAIL

    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        block = blocks[index]
        if block in (OWN, TAIL):
            blocks[index] = PLAIN
        elif block > 0 and self._group_of.pop(block, -1) >= 0:
            self.indexes[group].forget(block)

    def is_cached(self, group: int, block: int) -> bool:
        return block in (OWN, TAIL) or block in self._group_of

    def retire(self, group: int, sequence: Sequence, table: BlockTable, first: int, end: int) -> None:
        blocks, runs = table.blocks, self.free_runs
        if end - first == 1:
            block = blocks[first]
            blocks[first] = NULL
            if block == PLAIN:
                runs.free_useless(1)
                return
            self._retire_one(table, block, first)
            return
        part = blocks[first:end]
        num_plain = part.count(PLAIN)
        if num_plain:
            runs.free_useless(num_plain)
        if num_plain < len(part):
            for index in range(end - 1, first - 1, -1):
                self._retire_one(table, blocks[index], index)
        blocks[first:end] = [NULL] * (end - first)

    def _retire_one(self, table: BlockTable, block: int, index: int) -> None:
        if block == OWN:
            table.left.append((self.free_runs.free_left(), index))
        elif block == TAIL:
            self.free_runs.free(1)
        elif block > 0:
            self._give_back(block)

    def free(self, group: int, sequence: Sequence, table: BlockTable, will_return: bool) -> None:
        blocks, runs = table.blocks, self.free_runs
        if will_return:
            self._name_left(group, sequence, table)
        num_plain, num_own = blocks.count(PLAIN), blocks.count(OWN) + blocks.count(TAIL)
        if not (num_own and will_return) and num_plain + num_own + blocks.count(NULL) == len(blocks):
            runs.free(num_own)
        else:
            for index in range(len(blocks) - 1, -1, -1):
                self._free_one(group, sequence, blocks[index], index, will_return)
        if num_plain:
            runs.free_useless(num_plain)

    def _free_one(self, group: int, sequence: Sequence, block: int, index: int, will_return: bool) -> None:
        """Give back an entry, unless nothing can find it."""
        if block > 0:
            self._give_back(block)
        elif block == OWN and will_return:
            self._name(group, sequence, self.free_runs.free_named(1)[0], index)
        elif block in (OWN, TAIL):
            self.free_runs.free(1)

    def _name_left(self, group: int, sequence: Sequence, table: BlockTable) -> None:
        """Make findable what a request that comes back has given back while it ran."""
        if not table.left:
            return
        names = self.free_runs.name_left([key for key, _ in table.left])
        for key, index in table.left:
            if key in names:
                self._name(group, sequence, names[key], index)

    def _give_back(self, block: int) -> None:
        if block in self._group_of:
            self.free_runs.give_back(block)
        else:
            self.free_runs.give_back_unnamed(block)

    def _name(self, group: int, sequence: Sequence, name: int, index: int) -> None:
        """Make the free block `name`, which was in place `index` of a table, findable."""
        self._group_of[name] = group
        identity = sequence.request.blocks.identity((index + 1) * self._hash_blocks[group] - 1)
        self.indexes[group].register(name, identity)

    def put_back(self, block: int) -> None:
        self.free_runs.free_useless(1)

    def forget_all(self) -> None:
        super().forget_all()
        self._group_of.clear()
