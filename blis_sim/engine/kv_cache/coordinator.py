"""The coordinator of several groups of layers, and the managers of full, windowed and chunked attention.

A new kind of cache is one class and one row of `MANAGERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.mamba_manager import MambaManager
from blis_sim.engine.kv_cache.single_type_manager import (
    NULL,
    AllocationNeeds,
    BlockTable,
    GroupHit,
    GroupSettings,
    KVBlocks,
    SingleTypeManager,
    next_multiple,
)
from blis_sim.engine.memory.kv_groups import KVCacheGroupSpec
from blis_sim.engine.memory.kv_specs import CHUNKED, FULL, LATENT, MIXED, SLIDING, STATE
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


class FullAttentionManager(SingleTypeManager):
    """Full attention: no block is given back before the end, and a hit is all blocks from the first on that can be
    found."""

    __slots__ = ()

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

    def cache(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, num_known: int, boundaries: list[int]
    ) -> int | None:
        super().cache(sequence, table, num_tokens, num_known, boundaries)
        return self._cache_tail(sequence, table, min(num_tokens, num_known)) if self.hashes_per_block > 1 else None

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        blocks, size = table.blocks, self.block_tokens
        if context >= len(blocks) * size:
            blocks.append(self.blocks.take_one())
        return len(blocks) * size

    def _cache_tail(self, sequence: Sequence, table: BlockTable, num_tokens: int) -> int | None:
        """Keep the block in which the prompt ends as one with content, though no hit ends inside of a block.

        Returns the identity by which it is kept; None where no block is kept.
        """
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

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        reach = self.spec.reach_tokens
        if processed % reach < self.block_tokens:
            self.cache(sequence, table, processed, processed, [])  # what is given back is findable
        next_change = super().decode(sequence, table, context, processed, lag)
        return min(next_change, next_multiple(context - lag, reach) + lag)

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
