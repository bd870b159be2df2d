"""The common part of the managers of all kinds of groups: block tables of requests, and the blocks they hold."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.prefix_index import ContentIndex
from blis_sim.engine.memory.kv_groups import KVCacheGroupSpec
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence

NULL = 0
"""Stands in block tables for a block that is not needed any more, or has never been. Block 0 is never handed out."""
PLAIN = -1
"""Stands for a block that nothing can find, where blocks are counted."""


class BlockTable:
    """Blocks by position; those no longer needed are `NULL`."""

    __slots__ = ("blocks", "is_allocated", "last_state", "left", "num_cached", "num_retired", "reserved")

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
        "max_in_flight_tokens",
        "max_model_len",
        "num_draft_tokens",
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
    ) -> None:
        self.alignment_tokens = alignment_tokens
        self.hash_tokens = hash_tokens
        self.enables_caching = enables_caching
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.drops_last_block = drops_last_block
        self.hash_lookahead_tokens = hash_lookahead_tokens
        self.num_draft_tokens = num_draft_tokens


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

    __slots__ = ("block_tokens", "blocks", "group", "hashes_per_block", "settings", "spec")

    def __init__(self, spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> None:
        self.spec = spec
        self.group = group
        self.blocks = blocks
        self.settings = settings
        self.block_tokens = spec.block_tokens
        self.hashes_per_block = max(1, spec.block_tokens // settings.hash_tokens)

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
    ) -> int | None:
        """Make full blocks among the first `num_tokens` tokens findable, where a hit could need them.

        The first `num_known` of the request's tokens have an identity. Returns the identity by which a block is kept
        that is full in part; None without one.
        """
        first, end = table.num_cached, min(num_tokens, num_known) // self.block_tokens
        if first >= end:
            return None
        table.num_cached = end
        for start, stop in self.reachable(first, end, boundaries):
            self.blocks.cache(self.group, sequence, table.blocks, start, stop)
        return None

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        """Do what `retire`, `num_lacking` and `allocate` do for one token after `context` tokens, with room for it.

        Steps that have ended brought `processed` of them. Returns the next context at which blocks change if from now
        on `lag` tokens are in flight.
        """
        self.retire(sequence, table, processed)
        if context >= len(table.blocks) * self.block_tokens:
            table.blocks.append(self.blocks.take_one())
        return len(table.blocks) * self.block_tokens

    def release(self, sequence: Sequence, table: BlockTable, will_return: bool) -> None:
        """Give all blocks of a request back, the last first. `will_return`: whether the request will come back."""
        self.blocks.free(self.group, sequence, table, will_return)

    def new_step(self) -> None:  # noqa: B027 - most kinds have nothing to note
        """Note that a step is about to be composed."""


def next_multiple(number: int, unit: int) -> int:
    """Return the smallest multiple of `unit` above `number`."""
    return (number // unit + 1) * unit
