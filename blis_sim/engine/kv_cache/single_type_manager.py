"""What the managers of all kinds of groups have in common: the block table of one group for every request."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.kv_blocks import NULL, KVBlocks
from blis_sim.engine.memory.kv_group_specs import KVCacheGroupSpec
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


class GroupSettings:
    """What a deployment decides about every group.

    Hits end at multiples of `alignment_tokens`; a prompt has an identity for every `hash_tokens` tokens. With
    `drops_last_block` the last block of a hit is computed anew, for a drafter that reads the token after it.
    """

    __slots__ = (
        "alignment_tokens",
        "caches",
        "drops_last_block",
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
        caches: bool,
        max_model_len: int,
        max_in_flight_tokens: int,
        drops_last_block: bool = False,
        hash_lookahead_tokens: int = 0,
        num_draft_tokens: int = 0,
    ) -> None:
        self.alignment_tokens = alignment_tokens
        self.hash_tokens = hash_tokens
        self.caches = caches
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.drops_last_block = drops_last_block
        self.hash_lookahead_tokens = hash_lookahead_tokens
        self.num_draft_tokens = num_draft_tokens


class BlockTable:
    """The blocks of one request in one group, by position; those no longer needed are `NULL`."""

    __slots__ = ("blocks", "is_allocated", "last_state", "num_cached", "num_retired", "reserved")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.num_cached = 0
        """Leading blocks that have been made findable, or passed over because no hit can need them."""
        self.is_allocated = False
        """Whether a step has been granted blocks for its states. Groups of states alone, as the following."""
        self.last_state = -1
        """The place of the state that the step before the latest allocation wrote; -1 without."""
        self.num_retired = 0
        """Leading places from which states have been given back."""
        self.reserved: tuple[int, int] | None = None
        """Where the latest chunk keeps a state inside of itself: its tokens, and its place."""


class Hit:
    """What one kind of group finds: `tokens` tokens, in blocks by position for each of the groups looked up."""

    __slots__ = ("blocks", "tokens")

    def __init__(self, blocks: list[list[int]], tokens: int) -> None:
        self.blocks = blocks
        self.tokens = tokens


class Needs:
    """What an allocation asks of every group."""

    __slots__ = ("computed_tokens", "is_whole_prompt", "main_tokens", "prefill_end", "tokens")

    def __init__(self, tokens: int, main_tokens: int, computed_tokens: int, prefill_end: int, whole: bool) -> None:
        self.tokens = tokens
        """Tokens that must have slots afterwards, those of drafts included."""
        self.main_tokens = main_tokens
        """The same without what a drafter needs for itself."""
        self.computed_tokens = computed_tokens
        """Tokens computed or found before it."""
        self.prefill_end = prefill_end
        """Where the prefill of the request ends, a repeated one included."""
        self.is_whole_prompt = whole
        """Whether this asks for all that a request will need before it decodes, to decide on its admission."""


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
    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> Hit:
        """Return the longest beginning of a request, up to so many tokens, that all of `groups` hold."""

    def reachable(self, index: int, boundaries: SequenceOf[int]) -> bool:
        """Return whether a later request could need the block in place `index` to go on from one of `boundaries`."""
        return True

    def skipped_tokens(self, computed_tokens: int) -> int:
        """Return how many leading tokens nothing needs any more once so many are computed."""
        return 0

    def admission_cap(self) -> int:
        """Return the most blocks that one request ever holds; 0 where it holds all until its end."""
        return 0

    def num_lacking(self, sequence: Sequence, table: BlockTable, found: list[int], needs: Needs) -> int:
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

    def allocate(self, table: BlockTable, needs: Needs) -> None:
        """Take the blocks that are lacking; `num_lacking` has been asked and there are enough."""
        num_new = -(-needs.tokens // self.block_tokens) - len(table.blocks)
        if num_new > 0:
            table.blocks.extend(self.blocks.take(num_new))

    def retire(self, sequence: Sequence, table: BlockTable, processed_tokens: int) -> None:
        """Give back the blocks that nothing needs any more once so many tokens are computed."""
        num_skipped = min(self.skipped_tokens(processed_tokens) // self.block_tokens, len(table.blocks))
        blocks = table.blocks
        first = num_skipped
        while first > 0 and blocks[first - 1] != NULL:
            first -= 1
        if first < num_skipped:
            self._give_back(sequence, table, first, num_skipped)

    def cache(self, sequence: Sequence, table: BlockTable, num_tokens: int, boundaries: SequenceOf[int]) -> None:
        """Make full blocks among the first `num_tokens` tokens findable, where a hit could need them."""
        hashed = (sequence.num_tokens - self.settings.hash_lookahead_tokens) // self.settings.hash_tokens
        end = min(num_tokens, hashed * self.settings.hash_tokens) // self.block_tokens
        first = table.num_cached
        if first >= end:
            return
        blocks, scale = table.blocks, self.hashes_per_block
        for index in range(first, end):
            if blocks[index] != NULL and self.reachable(index, boundaries):
                self.blocks.cache(self.group, sequence, blocks, index, (index + 1) * scale - 1)
        table.num_cached = end

    def release(self, sequence: Sequence, table: BlockTable, returns: bool) -> None:
        """Give all blocks of a request back, the last first. `returns` says whether it will come back."""
        self.blocks.free(self.group, sequence, table.blocks, 0, len(table.blocks), returns)

    def new_step(self) -> None:  # noqa: B027 - most kinds have nothing to note
        """Note that a step is about to be composed."""

    def _give_back(self, sequence: Sequence, table: BlockTable, first: int, end: int) -> None:
        self.blocks.free(self.group, sequence, table.blocks, first, end, returns=True)
        table.blocks[first:end] = [NULL] * (end - first)
