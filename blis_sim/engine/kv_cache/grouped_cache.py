"""vLLM's KV caches of models with several groups of layers over one pool, and under a drafter that reads ahead."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.block_pool import BlockPool, CohortCache, FreeBlockRuns
from blis_sim.engine.kv_cache.changes import AllBlocksCleared, BlockRemoved, BlocksStored, CacheChange
from blis_sim.engine.kv_cache.single_type_manager import (
    NEVER,
    NULL,
    PLAIN,
    AllocationNeeds,
    BlockTable,
    GroupHit,
    GroupSettings,
    KVBlocks,
    MambaManager,
    SingleTypeManager,
    next_multiple,
)
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.memory.kv_groups import (
    CHUNKED,
    FULL,
    LATENT,
    MIXED,
    SLIDING,
    STATE,
    KVCacheGroupSpec,
    scheduler_block_tokens,
)
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import Speculation

# The blocks of several groups: the pool in vLLM's own order, number by number, and blocks that are only counted.


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

    def give_back(self, blocks: list[int]) -> None:
        self._free(blocks)

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

    def __init__(self, runs: FreeBlockRuns, hash_blocks: SequenceOf[int]) -> None:
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


# The coordinator of several groups of layers, and the managers of full, windowed and chunked attention.
#
# A new kind of cache is one class and one row of `MANAGERS`.


class FullAttentionManager(SingleTypeManager):
    """Full attention: no block is given back before the end, and a hit is all blocks from the first on that can be
    found."""

    __slots__ = ()

    def __init__(self, spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> None:
        super().__init__(spec, group, blocks, settings)
        self.keeps_parts = self.hashes_per_block > 1

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> GroupHit:
        size, scale, alignment = self.block_tokens, self.hashes_per_block, self.settings.alignment_tokens
        found: list[list[int]] = [[] for _ in groups]
        tokens = 0
        for index in range(max_tokens // size):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                break
            for each, block in zip(found, blocks, strict=True):
                each.append(block)
            tokens += size
        if drops_last_block and tokens:
            tokens -= min(alignment, size)
        tokens -= tokens % alignment
        for each in found:
            del each[-(-tokens // size) :]
        return GroupHit(found, tokens)

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        blocks, size = table.blocks, self.block_tokens
        if context >= len(blocks) * size:
            blocks.append(self.blocks.take_one())
        return len(blocks) * size

    def cache_part(
        self, sequence: Sequence, table: BlockTable, first: int, num_tokens: int, boundaries: list[int]
    ) -> int | None:
        """Keep the block in which the prompt ends as one with content, though no hit ends inside of a block."""
        unit = self.settings.hash_tokens
        tail_tokens = (sequence.input_tokens - (not self.settings.drops_last_block)) // unit * unit
        index = tail_tokens // self.block_tokens
        if tail_tokens == 0 or tail_tokens > num_tokens or tail_tokens % self.block_tokens == 0:
            return None
        if index >= len(table.blocks):
            return None
        identity, block = tail_tokens // unit - 1, table.blocks[index]
        if index < table.num_cached:
            is_new = self.blocks.reports_part(self.group, block, sequence.request.blocks.identity(identity))
            return identity if is_new else None
        if self.blocks.is_cached(self.group, block):
            return None
        self.blocks.cache_part(self.group, sequence, table.blocks, index, identity)
        return identity


class SlidingWindowManager(SingleTypeManager):
    """A hit needs the blocks of one window before its end, and only such blocks are made findable."""

    __slots__ = ()

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> GroupHit:
        size, scale, alignment = self.block_tokens, self.hashes_per_block, self.settings.alignment_tokens
        most, needed = max_tokens // size, self._num_window_blocks(drops_last_block)
        found: list[list[int]] = [[NULL] * most for _ in groups]
        num_in_a_row = end = 0
        for index in range(most - 1, -1, -1):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                num_in_a_row = 0
                continue
            if num_in_a_row == 0 and (index + (not drops_last_block)) * size % alignment:
                continue
            for each, block in zip(found, blocks, strict=True):
                each[index] = block
            num_in_a_row += 1
            if num_in_a_row >= needed:
                end = index + num_in_a_row
                break
        else:
            end = num_in_a_row
            while end * size % alignment:
                end -= 1
        if drops_last_block and end:
            end -= 1
            while end * size % alignment:
                end -= 1
        for each in found:
            del each[end:]
        return GroupHit(found, end * size)

    def reachable(self, first: int, end: int, boundaries: list[int]) -> list[tuple[int, int]]:
        if self.settings.keeps_all_windows:
            return [(first, end)]
        size, alignment, drops = self.block_tokens, self.settings.alignment_tokens, self.settings.drops_last_block
        needed = self._num_window_blocks(drops)
        ranges: list[tuple[int, int]] = []
        for boundary in sorted(boundaries):
            stop = boundary // alignment * alignment // size + drops
            start = max(stop - needed, ranges[-1][1] if ranges else first)
            if start < min(stop, end):
                ranges.append((start, min(stop, end)))
        return ranges

    def skipped_tokens(self, computed_tokens: int) -> int:
        return max(0, computed_tokens - self.spec.reach_tokens + 1)

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        blocks, size, before = table.blocks, self.block_tokens, self.spec.reach_tokens - 1
        end = max(0, processed - before) // size
        if end and blocks[end - 1] != NULL:
            first = end - 1
            while first and blocks[first - 1] != NULL:
                first -= 1
            self.blocks.retire(self.group, sequence, table, first, end)
        if context >= len(blocks) * size:
            blocks.append(self.blocks.take_one())
        return min(len(blocks) * size, (end + 1) * size + before + lag)

    def admission_cap(self) -> int:
        settings = self.settings
        held = min(self.spec.reach_tokens - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        return -(-held // self.block_tokens) + 1

    def _num_window_blocks(self, drops_last_block: bool) -> int:
        return -(-(self.spec.reach_tokens - 1) // self.block_tokens) + drops_last_block


class ChunkedLocalManager(SingleTypeManager):
    """Whole chunks before the latest one are given back, and count as found without a lookup."""

    __slots__ = ()

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> GroupHit:
        size, scale = self.block_tokens, self.hashes_per_block
        start = self.skipped_tokens(max_tokens) // size
        found: list[list[int]] = [[NULL] * start for _ in groups]
        end = start
        for index in range(start, max_tokens // size):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                break
            for each, block in zip(found, blocks, strict=True):
                each.append(block)
            end += 1
        return GroupHit(found, end * size)

    def skipped_tokens(self, computed_tokens: int) -> int:
        return computed_tokens // self.spec.reach_tokens * self.spec.reach_tokens

    def retire_decoding(self, sequence: Sequence, table: BlockTable, processed_tokens: int) -> None:
        if processed_tokens % self.spec.reach_tokens < self.block_tokens:
            self.cache(sequence, table, processed_tokens, processed_tokens, [])  # what is given back is findable
        self.retire(sequence, table, processed_tokens)

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        next_change = super().decode(sequence, table, context, processed, lag)
        return min(next_change, next_multiple(context - lag, self.spec.reach_tokens) + lag)

    def admission_cap(self) -> int:
        held = min(self.spec.reach_tokens + self.settings.max_in_flight_tokens, self.settings.max_model_len)
        return -(-held // self.block_tokens)


NewManager: TypeAlias = Callable[[KVCacheGroupSpec, int, KVBlocks, GroupSettings], SingleTypeManager]

MANAGERS: Mapping[str, NewManager] = {
    FULL: FullAttentionManager,
    LATENT: FullAttentionManager,
    MIXED: FullAttentionManager,
    SLIDING: SlidingWindowManager,
    CHUNKED: ChunkedLocalManager,
    STATE: MambaManager,
}
"""Managers by the name of vLLM's specification."""


def new_manager(spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> SingleTypeManager:
    """Return the manager of a group. Raises EngineError for a kind without one."""
    if spec.kind not in MANAGERS:
        raise EngineError(f"a KV cache group must be one of {', '.join(MANAGERS)}, got {spec.kind}")
    return MANAGERS[spec.kind](spec, group, blocks, settings)


@dataclass(slots=True)
class CacheHit:
    """The beginning of a request that all groups hold: its tokens, and the blocks of each group by position.

    Some group may hold more. Then another request has the same beginning, and where that ends is `boundary_tokens`,
    from which a state or a window is worth keeping; 0 without.
    """

    tokens: int
    blocks: list[list[int]]
    boundary_tokens: int


class KVCacheCoordinator:
    """Facts: vllm/v1/core/kv_cache_coordinator.py, `HybridKVCacheCoordinator`; with one group the unitary one."""

    __slots__ = ("_equal", "_is_simple", "blocks", "managers", "settings")

    def __init__(self, groups: tuple[KVCacheGroupSpec, ...], blocks: KVBlocks, settings: GroupSettings) -> None:
        self.blocks = blocks
        self.settings = settings
        self.managers = [new_manager(spec, group, blocks, settings) for group, spec in enumerate(groups)]
        self._equal = _equal_groups(self.managers)
        """Groups of equal layers are looked up together, those that keep every token first."""
        self._is_simple = len(self._equal) == 2 and self.managers[self._equal[0][0]].spec.is_whole_context

    def find(self, sequence: Sequence) -> CacheHit:
        """Return the longest beginning, but for the last token, that all groups hold."""
        length, longest = sequence.num_tokens - 1, 0
        found: list[list[int]] = [[] for _ in self.managers]
        lengths = [-1] * len(self.managers)
        verified: set[int] = set()
        while True:
            current = length
            for place, groups in enumerate(self._equal):
                if self.managers[groups[0]].spec.is_whole_context and lengths[groups[0]] >= 0:
                    current = min(current, lengths[groups[0]])
                else:
                    current = self._find_in(place, sequence, current, verified, found)
                    lengths[groups[0]] = current
                    longest = max(longest, current)
            is_settled = current >= length
            length = min(current, length)
            if is_settled or self._is_simple or len(self.managers) == 1:
                break
        for manager, blocks in zip(self.managers, found, strict=True):
            if manager.spec.is_whole_context:
                del blocks[-(-length // manager.block_tokens) :]
        has_boundary = longest > length and len(self.managers) > 1
        return CacheHit(length, found, longest if has_boundary else 0)

    def _find_in(
        self, place: int, sequence: Sequence, max_tokens: int, verified: set[int], found: list[list[int]]
    ) -> int:
        """Look up equal groups, up to `max_tokens`. Returns how many tokens all of them hold, and notes the blocks.

        Each place drops the last block once for a length, which `verified` notes.
        """
        groups, settings = self._equal[place], self.settings
        manager = self.managers[groups[0]]
        drops, most = settings.drops_last_block and place not in verified, max_tokens
        if drops and manager.spec.kind != STATE and len(self.managers) > 1:
            num_hashes = (sequence.num_tokens - settings.hash_lookahead_tokens) // settings.hash_tokens
            most = min(max_tokens + manager.block_tokens, num_hashes * settings.hash_tokens)
        hit = manager.find(sequence.request.blocks, most, groups, drops)
        if drops:
            verified.add(place)
        elif hit.tokens < max_tokens:
            verified.clear()
        for group, blocks in zip(groups, hit.blocks, strict=True):
            found[group] = blocks
        return hit.tokens

    def num_cacheable_tokens(self, num_tokens: int, manager: SingleTypeManager) -> int:
        """Return how many of the first `num_tokens` tokens may be made findable: up to where hits can end."""
        if len(self.managers) == 1:
            return num_tokens
        aligned = num_tokens - num_tokens % self.settings.alignment_tokens
        if self.settings.drops_last_block and aligned:
            return min(num_tokens, aligned + manager.block_tokens)
        return aligned

    def replay_boundaries(self, sequence: Sequence, boundary_tokens: int) -> list[int]:
        """Return the positions from which a later request goes on: the ends of the prompt, then of a shared beginning.

        Where the last block of a hit is computed anew, its beginning counts, too.
        """
        num_tokens, unit = sequence.input_tokens, self.settings.alignment_tokens
        if not self.settings.drops_last_block:
            return [num_tokens - 1, boundary_tokens] if boundary_tokens else [num_tokens - 1]
        ends = [max((num_tokens - 1) // unit * unit - unit, 0), max(num_tokens // unit * unit - unit, 0)]
        if boundary_tokens:
            ends += [boundary_tokens, boundary_tokens - min(manager.block_tokens for manager in self.managers)]
        return ends


def _equal_groups(managers: list[SingleTypeManager]) -> list[list[int]]:
    by_spec: dict[KVCacheGroupSpec, list[int]] = {}
    for manager in managers:
        by_spec.setdefault(manager.spec, []).append(manager.group)
    return sorted(by_spec.values(), key=lambda groups: not managers[groups[0]].spec.is_whole_context)


def allocation_needs(
    sequence: Sequence, computed_tokens: int, tokens: int, main_tokens: int, whole: bool = False
) -> AllocationNeeds:
    """Return the needs of an allocation after which a request has slots for `tokens` tokens, drafts included."""
    prefill_end = max(sequence.input_tokens, sequence.num_tokens - 1)
    return AllocationNeeds(tokens, main_tokens, computed_tokens, prefill_end, whole)


# vLLM's KV cache of a model whose layers keep different things: groups with a block table each, over one pool.


class GroupedKVCache(CohortCache):
    """Slots in every group or in none. Facts: vllm/v1/core/kv_cache_manager.py, `allocate_slots`.

    `index` is that of the first group that keeps every token, else of the first group.
    """

    __slots__ = (
        "_boundaries",
        "_changes",
        "_found",
        "_has_context",
        "_is_plain",
        "_lacked",
        "_lookahead_tokens",
        "_none_found",
        "_num_detached",
        "_withheld",
        "blocks",
        "coordinator",
        "reported_group",
        "tables",
    )

    def __init__(self, config: EngineConfig, changes: list[CacheChange] | None = None, counts: bool = False) -> None:
        """`changes` receives what happens to the content of every group.

        With `counts` blocks have numbers only where another request may find them.
        """
        super().__init__(config)
        groups = config.cache_groups
        self.reported_group = next((number for number, spec in enumerate(groups) if spec.is_whole_context), 0)
        self._changes = changes
        spans = [max(1, spec.block_tokens // config.block_size_tokens) for spec in groups]
        self.blocks: KVBlocks = (
            CountedBlocks(self.free, spans) if counts else NumberedBlocks(self.num_blocks, spans, changes)
        )
        self.coordinator = KVCacheCoordinator(groups, self.blocks, group_settings(config))
        self.index = self.blocks.indexes[self.reported_group]
        self.tables: dict[Sequence, list[BlockTable]] = {}
        """The block tables of every request that holds blocks, one for each group."""
        self._boundaries: dict[Sequence, int] = {}
        """Where the beginning ends that a request shares with others, beyond what all groups hold of it."""
        self._found = CacheHit(0, [], 0)
        self._none_found: list[list[int]] = [[] for _ in groups]
        self._lookahead_tokens = config.speculation.num_lookahead_tokens if config.speculation else 0
        self._withheld: list[int] = []
        self._is_plain = len(groups) == 1 and groups[0].is_whole_context
        """Whether nothing changes but where a block begins or is full."""
        self._num_detached = 0
        """Blocks that no request holds and that are not free yet."""
        self._has_context = groups[self.reported_group].is_whole_context
        self._lacked: tuple[Sequence | None, int] = None, 0
        """The sequence that was searched latest if its whole prompt found no room, and how many blocks it lacks."""

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.blocks.num_free

    @property
    def num_groups(self) -> int:
        return len(self.coordinator.managers)

    def check(self) -> None:
        self.blocks.check()
        held = sum(1 for tables in self.tables.values() for table in tables for block in table.blocks if block)
        others = len(self._withheld) + self._num_detached
        assert held >= self.num_used_blocks - others, f"{self.num_used_blocks} blocks for {held} places"

    def forget(self) -> bool:
        if self.num_used_blocks:
            return False
        self.blocks.forget_all()
        self.index = self.blocks.indexes[self.reported_group]
        if self._changes is not None:
            self._changes.append(AllBlocksCleared())
        return True

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the beginning, of all groups one after the other. Notes it for `admit`."""
        self._boundaries.pop(sequence, None)
        self._lacked = None, 0  # it may find more by now than when it lacked blocks
        if not self.enables_caching or not sequence.request.reads_prefix_cache:
            self._found = CacheHit(0, [], 0)
            return []
        if self._finds_nothing(sequence):
            self._found = CacheHit(0, [], 0)
            return []
        self._found = found = self.coordinator.find(sequence)
        if found.boundary_tokens:
            self._boundaries[sequence] = found.boundary_tokens
        if self._changes is not None and sequence.request.reports_found_blocks:
            self._changes.extend(self._found_again(sequence, found))
        return [block for blocks in found.blocks for block in blocks]

    def _found_again(self, sequence: Sequence, found: CacheHit) -> list[CacheChange]:
        """Return a change for each group that names its blocks of a common beginning."""
        if not found.tokens:
            return []
        return [
            BlocksStored(sequence.request, 0, len(blocks) * manager.hashes_per_block, group, manager.hashes_per_block)
            for group, (manager, blocks) in enumerate(zip(self.coordinator.managers, found.blocks, strict=True))
            if blocks
        ]

    def _finds_nothing(self, sequence: Sequence) -> bool:
        """Whether no lookup is needed: nothing was ever findable, or only this request could find its own blocks."""
        if not self._has_context:
            return False
        return not len(self.index) or not (sequence.num_shareable_blocks or sequence.num_preemptions)

    def num_found_tokens(self, hits: SequenceOf[int]) -> int:
        return self._found.tokens

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        if self.enables_caching and sequence.request.reads_prefix_cache and sequence.num_preemptions == 0:
            self.queried_tokens += sequence.num_tokens
            self.hit_tokens += self._found.tokens

    def boundary_tokens(self, sequence: Sequence) -> int:
        return self._boundaries.get(sequence, 0)

    def new_step(self) -> None:
        for manager in self.coordinator.managers:
            manager.new_step()

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        computed = sequence.num_computed_tokens
        if self._is_plain and self._changes_nothing(sequence, computed + num_tokens):
            return True
        if not self.advance(sequence, computed, computed - sequence.num_in_flight_tokens, num_tokens):
            return False
        self.register(sequence, min(computed + num_tokens, sequence.num_tokens))
        return True

    def _changes_nothing(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether a request has slots for `num_tokens` tokens already, and fills no block with them."""
        table, size = self.tables[sequence][0], self.block_size
        has_slots = self._slots_for(num_tokens) <= len(table.blocks) * size
        return has_slots and (not self.enables_caching or num_tokens // size <= table.num_cached)

    def advance(
        self, sequence: Sequence, computed: int, processed: int, num_tokens: int, num_reserved: int = 0
    ) -> bool:
        """Give slots for `num_tokens` tokens after `computed` ones, of which steps that have ended brought `processed`.

        Returns False if too few blocks are free beside `num_reserved`.
        """
        tables, managers = self.tables[sequence], self.coordinator.managers
        self._retire(sequence, tables, processed)
        main_tokens = computed + num_tokens
        needs = allocation_needs(sequence, computed, self._slots_for(main_tokens), main_tokens)
        if self._num_lacking(sequence, tables, self._none_found, needs) > self.blocks.num_free - num_reserved:
            return False
        for manager, table in zip(managers, tables, strict=True):
            manager.allocate(table, needs)
        return True

    def decode(self, sequence: Sequence, context: int, processed: int, lag: int) -> int:
        """Give slots for one token after `context` ones, with room for it. Returns when blocks change next.

        Steps that have ended brought `processed` of them; later on `lag` tokens are in flight.
        """
        next_change, managers, tables = NEVER, self.coordinator.managers, self.tables[sequence]
        if self.free.num_next < len(managers):  # else none takes a block that may be found
            for manager, table in zip(managers, tables, strict=True):  # all groups give back before the first takes
                manager.retire_decoding(sequence, table, processed)
        for manager, table in zip(managers, tables, strict=True):
            change = manager.decode(sequence, table, context, processed, lag)
            if change < next_change:
                next_change = change
        return next_change

    def join(self, sequence: Sequence) -> None:
        """Note that a sequence only decodes from now on."""
        for table in self.tables[sequence]:
            table.reserved = None

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        found = self._found if hits else CacheHit(0, [], 0)
        managers, start = self.coordinator.managers, self._found.tokens
        free = self.blocks.num_free - (self.watermark_blocks if others_run else 0)
        tables = [BlockTable() for _ in managers]
        blocks = found.blocks or [[] for _ in managers]
        main_tokens = start + num_tokens
        whole = min(sequence.num_tokens, self._limit_tokens)
        asked = [allocation_needs(sequence, start, whole, whole, whole=True)] if whole_must_fit else []
        asked.append(allocation_needs(sequence, start, self._slots_for(main_tokens), main_tokens))
        for needs in asked:
            num_lacking = self._num_lacking(sequence, tables, blocks, needs)
            if num_lacking > free:
                if needs.is_whole_prompt:
                    evictable = sum(self.blocks.num_evictable(own) for own in blocks)
                    self._lacked = sequence, 0 if num_lacking >= NEVER else num_lacking - evictable
                return False
        if hits:
            for manager, table, own in zip(managers, tables, blocks, strict=True):
                manager.hold_found(table, own, start)
        for manager, table in zip(managers, tables, strict=True):
            manager.allocate(table, asked[-1])
        self.tables[sequence] = tables
        self.register(sequence, min(main_tokens, sequence.num_tokens))
        return True

    # --- beginnings that are brought from elsewhere, and blocks that are given back later ---

    def admit_load(
        self, sequence: Sequence, num_tokens: int, whole_must_fit: bool, watermark: int, num_reserved: int
    ) -> bool:
        """Give a waiting sequence the blocks found latest, and those for `num_tokens` tokens after them.

        Their content is to come. `num_reserved` more blocks must stay free for others.
        """
        found, managers = self._found, self.coordinator.managers
        total = min(found.tokens + num_tokens, self._limit_tokens)
        whole = min(sequence.num_tokens, self._limit_tokens)
        tables = [BlockTable() for _ in managers]
        blocks = found.blocks or [[] for _ in managers]
        free = self.blocks.num_free - watermark
        needs = allocation_needs(sequence, total, total, total)
        if whole_must_fit:
            all_needs = allocation_needs(sequence, total, whole, whole, whole=True)
            if self._num_lacking(sequence, tables, blocks, all_needs) > free:
                return False
        if self._num_lacking(sequence, tables, blocks, needs) > free - num_reserved:
            return False
        for manager, table, own in zip(managers, tables, blocks, strict=True):
            manager.hold_found(table, own, total)
        for manager, table in zip(managers, tables, strict=True):
            num_new = -(-total // manager.block_tokens) - len(table.blocks)
            if num_new > 0:
                table.blocks.extend(self.blocks.take(num_new))
        for manager, table in zip(managers, tables, strict=True):
            manager.allocate(table, needs)
        self.tables[sequence] = tables
        return True

    def resume(self, sequence: Sequence, num_tokens: int, whole_must_fit: bool, others_run: bool) -> bool:
        """Allocate slots for the next `num_tokens` tokens of a waiting sequence that holds blocks."""
        computed, watermark = sequence.num_computed_tokens, self.watermark_blocks if others_run else 0
        if whole_must_fit and self.num_remaining(sequence, 0) > self.blocks.num_free - watermark:
            return False
        if not self.advance(sequence, computed, computed, num_tokens, watermark):
            return False
        self.register(sequence, min(computed + num_tokens, sequence.num_tokens))
        return True

    def num_remaining(self, sequence: Sequence, num_more_tokens: int) -> int:
        """Return the blocks that a sequence lacks for all its tokens and `num_more_tokens` more."""
        whole, tables = min(sequence.num_tokens, self._limit_tokens), self.tables[sequence]
        needs = allocation_needs(sequence, sequence.num_computed_tokens, whole + num_more_tokens, whole, whole=True)
        return self._num_lacking(sequence, tables, self._none_found, needs)

    def _num_lacking(
        self, sequence: Sequence, tables: list[BlockTable], found: list[list[int]], needs: AllocationNeeds
    ) -> int:
        num_lacking = 0
        for manager, table, own in zip(self.coordinator.managers, tables, found, strict=True):
            num_lacking += manager.num_lacking(sequence, table, own, needs)
        return num_lacking

    def retire(self, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that its next step would not need."""
        tables = self.tables.get(sequence)
        if tables is not None:
            self._retire(sequence, tables, sequence.num_computed_tokens - sequence.num_in_flight_tokens)

    def detach(self, sequence: Sequence) -> list[int]:
        """Take all blocks of a request away, which are not free before `give_back`. Returns them."""
        blocks: list[int] = []
        for manager, table in zip(self.coordinator.managers, self.tables.pop(sequence, ()), strict=False):
            manager.leave(sequence)
            blocks += [block for block in table.blocks if block != NULL]
        self._boundaries.pop(sequence, None)
        self._num_detached += len(blocks)
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """Let blocks be free that were taken away from a request, the last first."""
        self._num_detached -= len(blocks)
        self.blocks.give_back(blocks)

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        if not self.enables_caching:
            return
        if self._is_plain and num_tokens // self.block_size <= self.tables[sequence][0].num_cached:
            return
        tables, coordinator, boundary = self.tables[sequence], self.coordinator, self._boundaries.get(sequence, 0)
        unit = self.block_size
        num_known = (sequence.num_tokens - coordinator.settings.hash_lookahead_tokens) // unit * unit
        boundaries = coordinator.replay_boundaries(sequence, boundary)
        for manager, table in zip(coordinator.managers, tables, strict=True):
            first = table.num_cached
            num_cacheable = coordinator.num_cacheable_tokens(num_tokens, manager)
            manager.cache(sequence, table, num_cacheable, num_known, boundaries)
            if self._changes is not None and table.num_cached > first:
                self._changes.append(self._stored(sequence, manager, table, first, boundaries))
            if not manager.keeps_parts:
                continue
            part = manager.cache_part(sequence, table, first, min(num_cacheable, num_known), boundaries)
            if part is not None and self._changes is not None:
                self._changes.append(BlocksStored(sequence.request, part, part + 1, manager.group))

    def _stored(
        self, sequence: Sequence, manager: SingleTypeManager, table: BlockTable, first: int, boundaries: list[int]
    ) -> BlocksStored:
        """Return the change of one group since it had `first` full blocks with content."""
        span, end = manager.hashes_per_block, table.num_cached
        kept = tuple(
            (index + 1) * span - 1
            for start, stop in manager.reachable(first, end, boundaries)
            for index in range(start, stop)
            if table.blocks[index] != NULL
        )
        return BlocksStored(sequence.request, first * span, end * span, manager.group, span, kept)

    def release(self, sequence: Sequence) -> None:
        self._give_back(sequence, will_return=False)

    def evict(self, sequence: Sequence) -> None:
        self._give_back(sequence, will_return=True)

    def take(self, num_blocks: int) -> None:
        self.blocks.take(num_blocks)

    def will_share(self, sequence: Sequence) -> bool:
        if not self.enables_caching:
            return False
        return any(
            table.num_cached < sequence.num_shareable_blocks // manager.hashes_per_block
            for manager, table in zip(self.coordinator.managers, self.tables[sequence], strict=True)
        )

    def grow_to(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        self.register(sequence, num_known_tokens)

    def release_grown(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        self.register(sequence, num_known_tokens)
        self.release(sequence)

    def may_fit(self, sequence: Sequence, num_hits: int) -> bool:
        lacking, num_lacked = self._lacked
        return lacking is not sequence or num_lacked <= self.blocks.num_free

    def num_prompt_blocks(self, num_tokens: int) -> int:
        """Return how many blocks a prompt takes that is computed in one step and of which nothing is found."""
        return sum(manager.num_prompt_blocks(num_tokens) for manager in self.coordinator.managers)

    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        tables: list[BlockTable] = []
        num_blocks = 0
        for manager in self.coordinator.managers:
            table = BlockTable()
            num_blocks += manager.hold_prompt(table, num_tokens)
            tables.append(table)
        self.tables[sequence] = tables
        self.register(sequence, num_tokens)
        if self.enables_caching and sequence.request.reads_prefix_cache:
            self.queried_tokens += num_tokens
        return num_blocks

    def withhold(self, num_blocks: int) -> None:
        while len(self._withheld) > num_blocks:
            self.blocks.put_back(self._withheld.pop())
        num_more = min(num_blocks - len(self._withheld), self.blocks.num_free)
        self._withheld.extend(self.blocks.take(max(0, num_more)))

    def _give_back(self, sequence: Sequence, will_return: bool) -> None:
        for manager, table in zip(self.coordinator.managers, self.tables.pop(sequence, ()), strict=False):
            manager.release(sequence, table, will_return)
            manager.leave(sequence)
        self._boundaries.pop(sequence, None)

    def _retire(self, sequence: Sequence, tables: list[BlockTable], processed_tokens: int) -> None:
        processed = max(0, min(processed_tokens, self._limit_tokens))
        for manager, table in zip(self.coordinator.managers, tables, strict=True):
            manager.retire(sequence, table, processed)

    def _slots_for(self, num_tokens: int) -> int:
        return min(num_tokens + self._lookahead_tokens, self._limit_tokens)


def group_settings(config: EngineConfig) -> GroupSettings:
    """Return what a deployment decides about all groups."""
    speculation = config.speculation
    return GroupSettings(
        alignment_tokens=scheduler_block_tokens(config.cache_groups),
        hash_tokens=config.block_size_tokens,
        enables_caching=config.enable_prefix_caching,
        max_model_len=config.limit_tokens,
        max_in_flight_tokens=config.max_in_flight_tokens,
        drops_last_block=speculation.drops_last_hit_block if speculation else False,
        hash_lookahead_tokens=config.num_hash_lookahead_tokens,
        num_draft_tokens=speculation.num_tokens if speculation else 0,
        reports_states=config.offload is not None,
        keeps_all_windows=config.keeps_all_windows,
    )


# vLLM's KV cache under a drafter that reads one token ahead: its KV of a block depends on the token after it.


class NextTokenKVCache(VllmKVCache):
    """Blocks are named by the token after them, too, so one is findable only once that token exists.

    The identities of a request are expected to be names of that kind. With names of the plain kind, the last block
    found is computed anew instead. Facts: vllm/config/vllm.py `num_hash_lookahead_tokens`,
    vllm/v1/core/single_type_kv_cache_manager.py `find_longest_cache_hit`.
    """

    __slots__ = ("_drops_last_hit", "_hash_lookahead_tokens")

    def __init__(
        self, config: EngineConfig, speculation: Speculation, changes: list[CacheChange] | None = None
    ) -> None:
        super().__init__(config, changes)
        self._drops_last_hit = speculation.drops_last_hit_block
        self._hash_lookahead_tokens = speculation.num_hash_lookahead_tokens

    def find_prefix(self, sequence: Sequence) -> list[int]:
        found = super().find_prefix(sequence)
        if self._drops_last_hit and found:
            found.pop()
        return found

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        super().register(sequence, min(num_tokens, sequence.num_tokens - self._hash_lookahead_tokens))
