"""The blocks of several groups by number, one by one: the pool that reports every change, in vLLM's own order."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.block_pool import BlockPool
from blis_sim.engine.kv_cache.block_table import NULL, BlockTable
from blis_sim.engine.kv_cache.changes import BlockRemoved, CacheChange
from blis_sim.engine.kv_cache.kv_blocks import KVBlocks
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

    def free(self, group: int, sequence: Sequence, table: BlockTable, returns: bool) -> None:
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
