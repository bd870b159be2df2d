"""Groups of recurrent states: which states are kept, and where chunks of a prefill end so that they can be kept.

Facts: vllm/v1/core/sched/scheduler.py, `_mamba_block_aligned_split`.
"""

from blis_sim.engine.config import EngineConfig
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
from blis_sim.engine.memory.kv_groups import KVCacheGroupSpec, scheduler_block_tokens
from blis_sim.engine.memory.kv_specs import STATE
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence

NEVER = 1 << 40
"""More blocks than any pool has: an allocation that must wait for the next step."""


class MambaManager(SingleTypeManager):
    """With prefix caching ("align") steps end at ends of blocks, where states are kept; two states or three are held.

    Without it ("none") one block lasts for a whole request. Each draft needs one state more.
    """

    __slots__ = ("_cached_this_step", "_num_draft_states")

    def __init__(self, spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> None:
        super().__init__(spec, group, blocks, settings)
        self._num_draft_states = settings.num_draft_tokens
        self._cached_this_step: set[object] = set()
        """Contents that steps which have not been executed will write: no other request of the same step can read
        them."""

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> GroupHit:
        size, scale = self.block_tokens, self.hashes_per_block
        for index in range(max_tokens // size - 1, -1, -1):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is not None and (index + 1) * size % self.settings.alignment_tokens == 0:
                return GroupHit([[NULL] * index + [block] for block in blocks], (index + 1) * size)
        return GroupHit([[] for _ in groups], 0)

    def reachable(self, first: int, end: int, boundaries: list[int]) -> list[tuple[int, int]]:
        alignment = self.settings.alignment_tokens
        places = {boundary // alignment * alignment // self.block_tokens - 1 for boundary in boundaries}
        return [(place, place + 1) for place in sorted(places) if first <= place < end]

    def skipped_tokens(self, computed_tokens: int) -> int:
        return computed_tokens - 1

    def num_lacking(self, sequence: Sequence, table: BlockTable, found: list[int], needs: AllocationNeeds) -> int:
        if found and self._identity(sequence, len(found)) in self._cached_this_step:
            return NEVER
        if not self.settings.enables_caching:
            return super().num_lacking(sequence, table, found, self._with_draft_states(needs))
        num_tokens = needs.main_tokens
        required = -(-num_tokens // self.block_tokens) + self._num_draft_states
        num_lacking = required - len(found) - len(table.blocks)
        reserved = self._inner_checkpoint(table, needs)
        if not needs.is_whole_prompt:
            table.reserved = reserved
        if num_lacking > 0:
            most = 1 + (reserved is not None) + (0 if table.is_allocated else self._num_draft_states)
            num_lacking = min(num_lacking, most)
        return num_lacking + self.blocks.num_evictable(found)

    def allocate(self, table: BlockTable, needs: AllocationNeeds) -> None:
        if not self.settings.enables_caching:
            super().allocate(table, self._with_draft_states(needs))
            return
        blocks, num_drafts, num_reserved = table.blocks, self._num_draft_states, int(table.reserved is not None)
        required = -(-needs.main_tokens // self.block_tokens) + num_drafts
        before = len(blocks)
        if required > before or num_reserved:
            if table.is_allocated:
                table.last_state = before - 1 - num_drafts
            elif before > 0:
                table.last_state = before - 1
            # States inside of this chunk are never written, but for a reserved one.
            end = required - num_drafts - 1 - num_reserved
            blocks.extend([NULL] * (end - before))
            if table.is_allocated:
                for index in range(before - num_drafts, min(before, end)):
                    blocks.append(blocks[index])
                    blocks[index] = NULL
            if required > len(blocks):
                blocks.extend(self.blocks.take(required - len(blocks)))
        table.is_allocated = True

    def num_prompt_blocks(self, num_tokens: int) -> int:
        num_blocks = super().num_prompt_blocks(num_tokens)
        if not self.settings.enables_caching or num_blocks == 1:
            return num_blocks
        reserved = self._inner_checkpoint(BlockTable(), AllocationNeeds(num_tokens, num_tokens, 0, num_tokens, False))
        return 1 + (reserved is not None)

    def hold_prompt(self, table: BlockTable, num_tokens: int) -> int:
        num_blocks = super().hold_prompt(table, num_tokens)
        if self.settings.enables_caching:
            table.reserved = self._inner_checkpoint(
                BlockTable(), AllocationNeeds(num_tokens, num_tokens, 0, num_tokens, False)
            )
            table.blocks[:0] = [NULL] * (super().num_prompt_blocks(num_tokens) - num_blocks)
            table.is_allocated = True
        return num_blocks

    def retire(self, sequence: Sequence, table: BlockTable, processed_tokens: int) -> None:
        if not self.settings.enables_caching:
            return
        size, blocks = self.block_tokens, table.blocks
        end = min((processed_tokens - 1) // size, len(blocks))
        if end > table.num_retired:
            self.blocks.retire(self.group, sequence, table, table.num_retired, end)
            table.num_retired = end
        last = table.last_state
        if 0 <= last < -(-processed_tokens // size) - 1 and blocks[last] != NULL:
            self.blocks.retire(self.group, sequence, table, last, last + 1)

    def cache(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, num_known: int, boundaries: list[int]
    ) -> int | None:
        first, blocks = table.num_cached, table.blocks
        super().cache(sequence, table, num_tokens, num_known, boundaries)
        if table.reserved is not None:
            self._cache_reserved(sequence, table, boundaries)
        for index in range(first, table.num_cached):
            if blocks[index] != NULL and self.blocks.is_cached(self.group, blocks[index]):
                self._cached_this_step.add(self._identity(sequence, index + 1))
        return None

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        size = self.block_tokens
        if not self.settings.enables_caching:
            return max(context, size) + 1
        self.retire(sequence, table, processed)
        table.reserved = None
        self.allocate(table, AllocationNeeds(context + 1, context + 1, context, 0, False))
        return min(next_multiple(context, size), next_multiple(context - 1 - lag, size) + 1 + lag)

    def new_step(self) -> None:
        self._cached_this_step.clear()

    def _cache_reserved(self, sequence: Sequence, table: BlockTable, boundaries: list[int]) -> None:
        """Make the state kept inside of the latest chunk findable, if a request can go on from there."""
        assert table.reserved is not None
        position, index = table.reserved
        prompt_end = self._checkpoint_position(sequence.input_tokens)
        shared_end = boundaries[2:3] if self.settings.drops_last_block else boundaries[1:]
        if position != prompt_end and position not in shared_end:
            self.blocks.uncache(self.group, table.blocks, index)
        elif table.blocks[index] != NULL and not self.blocks.is_cached(self.group, table.blocks[index]):
            self.blocks.cache(self.group, sequence, table.blocks, index, index + 1)
            self._cached_this_step.add(self._identity(sequence, index + 1))

    def _inner_checkpoint(self, table: BlockTable, needs: AllocationNeeds) -> tuple[int, int] | None:
        """Return after how many tokens, and in which place, the last chunk of a prefill keeps a state inside itself."""
        start, end, size, blocks = needs.computed_tokens, needs.main_tokens, self.block_tokens, table.blocks
        position, index = self._checkpoint_position(end), -(-end // size) - 2
        if (
            end < needs.prefill_end
            or index < 0
            or not is_checkpoint_valid(
                start, end, position, self.settings.hash_tokens, size, self.spec.checkpoint_tokens
            )
        ):
            return None
        is_vacant = index >= len(blocks) or blocks[index] == NULL
        if is_vacant or (table.is_allocated and index >= len(blocks) - self._num_draft_states):
            return position, index
        return None

    def _checkpoint_position(self, num_tokens: int) -> int:
        settings = self.settings
        return checkpoint_position(
            num_tokens, settings.alignment_tokens, settings.drops_last_block, settings.hash_lookahead_tokens
        )

    def _identity(self, sequence: Sequence, num_blocks: int) -> object:
        return sequence.request.blocks.identity(num_blocks * self.hashes_per_block - 1)

    def _with_draft_states(self, needs: AllocationNeeds) -> AllocationNeeds:
        tokens = needs.tokens + self.block_tokens * self._num_draft_states
        return AllocationNeeds(
            tokens, needs.main_tokens, needs.computed_tokens, needs.prefill_end, needs.is_whole_prompt
        )


def checkpoint_position(num_tokens: int, unit: int, drops_last_block: bool, hash_lookahead_tokens: int) -> int:
    """Return after how many of `num_tokens` tokens a state is kept that a repeated prompt can go on from."""
    if drops_last_block:
        return max(num_tokens // unit * unit - unit, 0)
    return max((num_tokens - max(1, hash_lookahead_tokens)) // unit * unit, 0)


def is_checkpoint_valid(start: int, end: int, position: int, unit: int, size: int, checkpoint_tokens: int) -> bool:
    """Return whether kernels can keep a state at `position` inside of a chunk from `start` to `end`."""
    if not checkpoint_tokens or start % unit or -(-end // size) - 2 <= (start - 1) // size:
        return False
    return start + unit <= position < end and (position - start) % checkpoint_tokens == 0


class StateSplit:
    """Shortens chunks. With kernels that keep states inside of a chunk, the last chunk of a prefill is left whole."""

    __slots__ = ("_block_tokens", "_checkpoint_tokens", "_drops", "_hash_tokens", "_lookahead", "_unit")

    def __init__(self, config: EngineConfig) -> None:
        states = [group for group in config.kv_groups if group.kind == STATE]
        others = [group.block_tokens for group in config.kv_groups if group.kind != STATE]
        self._block_tokens = min(others, default=states[0].block_tokens)
        self._unit = scheduler_block_tokens(config.kv_groups)
        self._hash_tokens = config.block_size_tokens
        can_keep = all(group.checkpoint_tokens for group in states)
        self._checkpoint_tokens = states[0].checkpoint_tokens if can_keep else 0
        self._drops = config.speculation.drops_last_hit_block if config.speculation else False
        self._lookahead = config.num_hash_lookahead_tokens

    def num_tokens(self, sequence: Sequence, start: int, num_tokens: int, boundary: int, most: int) -> int:
        """Return how many of the next `num_tokens` tokens after the first `start` make a chunk; 0 where it must wait.

        `boundary` is the end of a beginning shared with others, 0 without. No chunk has more than `most` tokens.
        """
        size, end = self._block_tokens, start + num_tokens
        prefill_end = max(sequence.input_tokens, sequence.num_tokens - 1)
        if start >= prefill_end:
            return num_tokens
        position = checkpoint_position(prefill_end, self._unit, self._drops, self._lookahead)
        keeps_inside = end >= prefill_end and is_checkpoint_valid(
            start, end, position, self._hash_tokens, size, self._checkpoint_tokens
        )
        last = 0 if keeps_inside else checkpoint_position(sequence.num_tokens, size, self._drops, self._lookahead)
        if end < prefill_end and (end // size * size > start or size <= most):
            end = end // size * size
        stops = [last]
        if start % size and not keeps_inside:
            stops.append((start // size + 1) * size)
        if start < boundary < end:
            stops.append(start + (boundary - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)


def new_state_split(config: EngineConfig) -> StateSplit | None:
    """Return how chunks are shortened; None without recurrent states, and where none of them is kept."""
    if not config.enable_prefix_caching or all(group.kind != STATE for group in config.kv_groups):
        return None
    return StateSplit(config)
