"""Managers of one group of layers: block tables of requests, and recurrent states."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import ContentIndex
from blis_sim.engine.memory.kv_groups import STATE, KVCacheGroupSpec, scheduler_block_tokens
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence

# The common part of the managers of all kinds of groups: block tables of requests, and the blocks they hold.

NULL = 0
"""Stands in block tables for a block that is not needed any more, or has never been. Block 0 is never handed out."""
PLAIN = -1
"""Stands for a block that nothing can find, where blocks are counted."""


class BlockTable:
    """Blocks by position; those no longer needed are `NULL`."""

    __slots__ = ("blocks", "is_allocated", "kept", "last_state", "left", "num_cached", "num_retired", "reserved")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.num_cached = 0
        """Leading blocks that have been made findable, or passed over because no hit can need them."""
        self.left: list[tuple[int, int]] = []
        """Blocks given back that only this request could find again: how the pool calls them, and their places."""
        self.is_allocated = False
        """Whether a step has been granted blocks for its states. Groups of states alone, as the following."""
        self.last_state = -1
        """The place of the state that the step before the latest allocation wrote; -1 without."""
        self.num_retired = 0
        """Leading places from which states have been given back."""
        self.reserved: tuple[int, int] | None = None
        """Where the latest chunk keeps a state inside of itself: after how many tokens, and its place."""
        self.kept: tuple[int, int] | None = None
        """The latest of these that was made findable although its block does not end there."""


class KVBlocks(ABC):
    """One pool for all groups, and for each group an index of what can be found in its blocks.

    An entry of a block table is a number of the pool's, with `NULL` for none.
    """

    __slots__ = ("indexes",)

    def __init__(self, num_groups: int) -> None:
        self.indexes = [ContentIndex() for _ in range(num_groups)]

    @property
    @abstractmethod
    def num_free(self) -> int: ...

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""

    @abstractmethod
    def take(self, num_blocks: int) -> list[int]:
        """Take free blocks, of which there must be enough, and forget what they held."""

    def take_one(self) -> int:
        """Take a free block, of which there must be one, and forget what it held."""
        return self.take(1)[0]

    @abstractmethod
    def num_evictable(self, blocks: SequenceOf[int]) -> int:
        """Return how many of these found blocks are free: holding them takes them away from others."""

    @abstractmethod
    def touch(self, blocks: SequenceOf[int]) -> None:
        """Hold found blocks once more."""

    @abstractmethod
    def cache(self, group: int, sequence: Sequence, blocks: list[int], first: int, end: int) -> None:
        """Make the blocks in places from `first` up to `end` of a table findable by the content up to their ends.

        The content of a part of them, under which they were known before, is forgotten.
        """

    @abstractmethod
    def cache_part(self, group: int, sequence: Sequence, blocks: list[int], index: int, hash_index: int) -> None:
        """Keep a block that is full up to the end of identity `hash_index` as one with content."""

    def reports_part(self, group: int, block: int, identity: object) -> bool:
        """Note a further identity of a full block, that of a part of it. Returns whether to report the identity."""
        return False

    @abstractmethod
    def uncache(self, group: int, blocks: list[int], index: int) -> None:
        """Make the block in place `index` of a table findable no more."""

    @abstractmethod
    def is_cached(self, group: int, block: int) -> bool:
        """Return whether an entry of a table is findable."""

    @abstractmethod
    def retire(self, group: int, sequence: Sequence, table: BlockTable, first: int, end: int) -> None:
        """Give back the entries from `first` up to `end` of the table of a request that goes on, the last first.

        Findable ones are the last to be reused, others the first.
        """

    @abstractmethod
    def free(self, group: int, sequence: Sequence, table: BlockTable, will_return: bool) -> None:
        """Give back all entries as `retire` does. `will_return`: whether the request will look the blocks up again."""

    def give_back(self, blocks: list[int]) -> None:
        """Give back blocks that have numbers, the last first."""
        raise NotImplementedError

    @abstractmethod
    def put_back(self, block: int) -> None:
        """Give back a block that was taken and never used: it is the first to be reused."""

    def forget_all(self) -> None:
        """Let nothing be found any more."""
        self.indexes = [ContentIndex() for _ in self.indexes]

    def find(self, groups: SequenceOf[int], identity: object) -> list[int] | None:
        """Return the block with a content for each of `groups`; None if any of them lacks it."""
        found: list[int] = []
        for group in groups:
            block = self.indexes[group].find(identity)
            if block is None:
                return None
            found.append(block)
        return found


class GroupSettings:
    """Settings of a deployment for every group.

    Hits end at multiples of `alignment_tokens`; a prompt has an identity for every `hash_tokens` tokens. With
    `drops_last_block` the last block of a hit is computed anew, for a drafter that reads the token after it.
    """

    __slots__ = (
        "alignment_tokens",
        "drops_last_block",
        "enables_caching",
        "hash_lookahead_tokens",
        "hash_tokens",
        "keeps_all_windows",
        "max_in_flight_tokens",
        "max_model_len",
        "num_draft_tokens",
        "reports_states",
    )

    def __init__(
        self,
        alignment_tokens: int,
        hash_tokens: int,
        enables_caching: bool,
        max_model_len: int,
        max_in_flight_tokens: int,
        drops_last_block: bool = False,
        hash_lookahead_tokens: int = 0,
        num_draft_tokens: int = 0,
        reports_states: bool = False,
        keeps_all_windows: bool = False,
    ) -> None:
        self.alignment_tokens = alignment_tokens
        self.hash_tokens = hash_tokens
        self.enables_caching = enables_caching
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.drops_last_block = drops_last_block
        self.hash_lookahead_tokens = hash_lookahead_tokens
        self.num_draft_tokens = num_draft_tokens
        self.reports_states = reports_states
        """Whether recurrent states that become findable are noted for CPU memory."""
        self.keeps_all_windows = keeps_all_windows
        """Whether all full blocks of sliding windows become findable, as in older releases."""


class GroupHit:
    """A hit in one kind of group: `tokens` tokens, in blocks by position for each of the groups looked up."""

    __slots__ = ("blocks", "tokens")

    def __init__(self, blocks: list[list[int]], tokens: int) -> None:
        self.blocks = blocks
        self.tokens = tokens


class AllocationNeeds:
    """The needs of an allocation, equal for every group."""

    __slots__ = ("computed_tokens", "is_whole_prompt", "main_tokens", "prefill_end", "tokens")

    def __init__(self, tokens: int, main_tokens: int, computed_tokens: int, prefill_end: int, whole: bool) -> None:
        self.tokens = tokens
        """Tokens that must have slots afterwards, those of drafts included."""
        self.main_tokens = main_tokens
        """Tokens that must have slots afterwards, without the slots that a drafter needs for itself."""
        self.computed_tokens = computed_tokens
        """Tokens computed or found before the allocation."""
        self.prefill_end = prefill_end
        """Where the prefill of the request ends, a repeated one included."""
        self.is_whole_prompt = whole
        """Whether the allocation includes all that a request needs before it decodes, to decide on its admission."""


class SingleTypeManager(ABC):
    """Block tables of one group. Facts: vllm/v1/core/single_type_kv_cache_manager.py."""

    __slots__ = ("block_tokens", "blocks", "group", "hashes_per_block", "keeps_parts", "settings", "spec")

    def __init__(self, spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> None:
        self.spec = spec
        self.group = group
        self.blocks = blocks
        self.settings = settings
        self.block_tokens = spec.block_tokens
        self.hashes_per_block = max(1, spec.block_tokens // settings.hash_tokens)
        self.keeps_parts = False
        """Whether `cache_part` may do anything."""

    @abstractmethod
    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> GroupHit:
        """Return the longest beginning of a request, up to `max_tokens`, that all of `groups` hold."""

    def reachable(self, first: int, end: int, boundaries: list[int]) -> list[tuple[int, int]]:
        """Return the ranges of places from `first` up to `end` that a later request may need.

        A later request goes on from one of `boundaries`.
        """
        return [(first, end)]

    def skipped_tokens(self, computed_tokens: int) -> int:
        """Return how many leading tokens are not needed any more once `computed_tokens` are computed."""
        return 0

    def admission_cap(self) -> int:
        """Return the most blocks that one request ever holds; 0 where it holds all until its end."""
        return 0

    def num_lacking(self, sequence: Sequence, table: BlockTable, found: list[int], needs: AllocationNeeds) -> int:
        """Return how many free blocks an allocation takes, found ones that are free included."""
        size = self.block_tokens
        required = -(-needs.tokens // size)
        if needs.is_whole_prompt and (cap := self.admission_cap()):
            required = min(required, cap)
        num_skipped = self.skipped_tokens(needs.computed_tokens) // size
        num_lacking = max(required - max(num_skipped, len(found) + len(table.blocks)), 0)
        if found:
            num_lacking += self.blocks.num_evictable(found[max(0, num_skipped - len(table.blocks)) :])
        return num_lacking

    def hold_found(self, table: BlockTable, found: list[int], hit_tokens: int) -> None:
        """Let a request without blocks begin with what was found."""
        num_skipped = self.skipped_tokens(hit_tokens) // self.block_tokens
        kept = found[num_skipped:]
        self.blocks.touch(kept)
        table.blocks.extend([NULL] * num_skipped)
        table.blocks.extend(kept)
        table.num_cached = len(table.blocks)

    def allocate(self, table: BlockTable, needs: AllocationNeeds) -> None:
        """Take the blocks that `num_lacking` counts; enough must be free."""
        num_new = -(-needs.tokens // self.block_tokens) - len(table.blocks)
        if num_new > 0:
            table.blocks.extend(self.blocks.take(num_new))

    def num_prompt_blocks(self, num_tokens: int) -> int:
        """Return how many blocks a prompt takes that is computed in one step and of which nothing is found."""
        return -(-num_tokens // self.block_tokens)

    def hold_prompt(self, table: BlockTable, num_tokens: int) -> int:
        """List the blocks of a prompt computed in one step in an empty table, by counting. Returns their number."""
        num_blocks = self.num_prompt_blocks(num_tokens)
        table.blocks = [PLAIN] * num_blocks
        return num_blocks

    def retire(self, sequence: Sequence, table: BlockTable, processed_tokens: int) -> None:
        """Give back the blocks that are not needed any more once `processed_tokens` are computed."""
        num_skipped = min(self.skipped_tokens(processed_tokens) // self.block_tokens, len(table.blocks))
        blocks = table.blocks
        first = num_skipped
        while first > 0 and blocks[first - 1] != NULL:
            first -= 1
        if first < num_skipped:
            self.blocks.retire(self.group, sequence, table, first, num_skipped)

    def cache(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, num_known: int, boundaries: list[int]
    ) -> None:
        """Make full blocks among the first `num_tokens` tokens findable, where a hit could need them.

        The first `num_known` of the request's tokens have an identity.
        """
        first, end = table.num_cached, min(num_tokens, num_known) // self.block_tokens
        if first >= end:
            return
        table.num_cached = end
        for start, stop in self.reachable(first, end, boundaries):
            self.blocks.cache(self.group, sequence, table.blocks, start, stop)

    def cache_part(
        self, sequence: Sequence, table: BlockTable, first: int, num_tokens: int, boundaries: list[int]
    ) -> int | None:
        """Make a block findable that is full in part, after `cache`, before which `first` blocks had content.

        Returns the identity by which it is kept; None without such a block.
        """
        return None

    def retire_decoding(self, sequence: Sequence, table: BlockTable, processed_tokens: int) -> None:
        """`retire` for a request that `decode` serves."""
        self.retire(sequence, table, processed_tokens)

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        """Do what `retire`, `num_lacking` and `allocate` do for one token after `context` tokens, with room for it.

        Steps that have ended brought `processed` of them. Returns the next context at which blocks change if from now
        on `lag` tokens are in flight.
        """
        self.retire_decoding(sequence, table, processed)
        if context >= len(table.blocks) * self.block_tokens:
            table.blocks.append(self.blocks.take_one())
        return len(table.blocks) * self.block_tokens

    def release(self, sequence: Sequence, table: BlockTable, will_return: bool) -> None:
        """Give all blocks of a request back, the last first. `will_return`: whether the request will come back."""
        self.blocks.free(self.group, sequence, table, will_return)

    def leave(self, sequence: Sequence) -> None:  # noqa: B027 - most kinds note nothing of a request
        """Forget what is noted of a request that loses its blocks."""

    def take_kept_states(self) -> list[tuple[Sequence, int]]:
        """Return the recurrent states that became findable since the latest call: whose, and after how many tokens."""
        return []

    def new_step(self) -> None:  # noqa: B027 - most kinds have nothing to note
        """Note that a step is about to be composed."""


def next_multiple(number: int, unit: int) -> int:
    """Return the smallest multiple of `unit` above `number`."""
    return (number // unit + 1) * unit


# Groups of recurrent states: which states are kept, and where chunks of a prefill end so that they can be kept.
#
# Facts: vllm/v1/core/sched/scheduler.py, `_mamba_block_aligned_split`.

NEVER = 1 << 40
"""More blocks than any pool has: an allocation that must wait for the next step."""


class MambaManager(SingleTypeManager):
    """With prefix caching ("align") steps end at ends of blocks, where states are kept; two states or three are held.

    Without it ("none") one block lasts for a whole request. Each draft needs one state more.
    """

    __slots__ = ("_cached_this_step", "_kept_states", "_num_draft_states")

    def __init__(self, spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> None:
        super().__init__(spec, group, blocks, settings)
        self.keeps_parts = True
        self._num_draft_states = settings.num_draft_tokens
        self._kept_states: list[tuple[Sequence, int]] = []
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

    def cache_part(
        self, sequence: Sequence, table: BlockTable, first: int, num_tokens: int, boundaries: list[int]
    ) -> int | None:
        blocks = table.blocks
        part = None if table.reserved is None else self._cache_reserved(sequence, table, boundaries)
        for index in range(first, table.num_cached):
            if blocks[index] != NULL and self.blocks.is_cached(self.group, blocks[index]):
                self._cached_this_step.add(self._identity(sequence, index + 1))
                if self.settings.reports_states:
                    is_kept = table.kept is not None and table.kept == table.reserved and table.kept[1] == index
                    end = table.kept[0] if is_kept and table.kept is not None else (index + 1) * self.block_tokens
                    self._kept_states.append((sequence, end))
        return part

    def leave(self, sequence: Sequence) -> None:
        if self._kept_states:
            self._kept_states = [state for state in self._kept_states if state[0] is not sequence]

    def take_kept_states(self) -> list[tuple[Sequence, int]]:
        states, self._kept_states = self._kept_states, []
        return states

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

    def _cache_reserved(self, sequence: Sequence, table: BlockTable, boundaries: list[int]) -> int | None:
        """Make the state kept inside of the latest chunk findable, if a request can go on from there.

        Returns its identity where it was not findable before.
        """
        assert table.reserved is not None
        position, index = table.reserved
        prompt_end = self._checkpoint_position(sequence.input_tokens)
        shared_end = boundaries[2:3] if self.settings.drops_last_block else boundaries[1:]
        if position != prompt_end and position not in shared_end:
            self.blocks.uncache(self.group, table.blocks, index)
            return None
        if table.blocks[index] == NULL:
            return None
        identity = position // self.settings.hash_tokens - 1
        if position != (index + 1) * self.block_tokens:
            if table.kept == table.reserved:
                return None
            table.kept = table.reserved
            self.blocks.cache_part(self.group, sequence, table.blocks, index, identity)
        elif self.blocks.is_cached(self.group, table.blocks[index]):
            return None
        else:
            self.blocks.cache(self.group, sequence, table.blocks, index, index + 1)
        self._cached_this_step.add(sequence.request.blocks.identity(identity))
        return identity

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
