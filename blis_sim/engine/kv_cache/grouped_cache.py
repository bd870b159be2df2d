"""vLLM's KV cache of a model whose layers keep different things: groups with a block table each, over one pool."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.changes import AllBlocksCleared, BlocksStored, CacheChange
from blis_sim.engine.kv_cache.coordinator import CacheHit, KVCacheCoordinator, allocation_needs
from blis_sim.engine.kv_cache.grouped_blocks import CountedBlocks, NumberedBlocks
from blis_sim.engine.kv_cache.interface import CohortCache
from blis_sim.engine.kv_cache.mamba_manager import NEVER
from blis_sim.engine.kv_cache.single_type_manager import NULL, BlockTable, GroupSettings, KVBlocks, SingleTypeManager
from blis_sim.engine.memory.kv_groups import scheduler_block_tokens
from blis_sim.engine.sequence import Sequence


class GroupedKVCache(CohortCache):
    """Slots in every group or in none. Facts: vllm/v1/core/kv_cache_manager.py, `allocate_slots`.

    `index` is that of the first group that keeps every token, else of the first group.
    """

    __slots__ = (
        "_boundaries",
        "_changes",
        "_found",
        "_has_context",
        "_lacked",
        "_lookahead_tokens",
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
        groups = config.kv_groups
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
        self._lookahead_tokens = config.speculation.num_lookahead_tokens if config.speculation else 0
        self._withheld: list[int] = []
        self._has_context = groups[self.reported_group].is_whole_context
        self._lacked: tuple[Sequence | None, int] = None, 0
        """The sequence whose whole prompt found no room latest, and how many blocks it lacks whatever it finds."""

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.blocks.num_free

    @property
    def num_groups(self) -> int:
        return len(self.coordinator.managers)

    def check(self) -> None:
        self.blocks.check()
        held = sum(1 for tables in self.tables.values() for table in tables for block in table.blocks if block)
        assert held >= self.num_used_blocks - len(self._withheld), f"{self.num_used_blocks} blocks for {held} places"

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
        if not self.advance(sequence, computed, computed - sequence.num_in_flight_tokens, num_tokens):
            return False
        self.register(sequence, min(computed + num_tokens, sequence.num_tokens))
        return True

    def advance(self, sequence: Sequence, computed: int, processed: int, num_tokens: int) -> bool:
        """Give slots for `num_tokens` tokens after `computed` ones, of which steps that have ended brought `processed`.

        Returns False if free blocks are too few.
        """
        tables, managers = self.tables[sequence], self.coordinator.managers
        self._retire(sequence, tables, processed)
        main_tokens = computed + num_tokens
        needs = allocation_needs(sequence, computed, self._slots_for(main_tokens), main_tokens)
        num_lacking = 0
        for manager, table in zip(managers, tables, strict=True):
            num_lacking += manager.num_lacking(sequence, table, [], needs)
        if num_lacking > self.blocks.num_free:
            return False
        for manager, table in zip(managers, tables, strict=True):
            manager.allocate(table, needs)
        return True

    def decode(self, sequence: Sequence, context: int, processed: int, lag: int) -> int:
        """Give slots for one token after `context` ones, with room for it. Returns when blocks change next.

        Steps that have ended brought `processed` of them; later on `lag` tokens are in flight.
        """
        next_change = NEVER
        for manager, table in zip(self.coordinator.managers, self.tables[sequence], strict=True):
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
            num_lacking = 0
            for manager, table, own in zip(managers, tables, blocks, strict=True):
                num_lacking += manager.num_lacking(sequence, table, own, needs)
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

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        if not self.enables_caching:
            return
        tables, coordinator, boundary = self.tables[sequence], self.coordinator, self._boundaries.get(sequence, 0)
        unit = self.block_size
        num_known = (sequence.num_tokens - coordinator.settings.hash_lookahead_tokens) // unit * unit
        boundaries = coordinator.replay_boundaries(sequence, boundary)
        for manager, table in zip(coordinator.managers, tables, strict=True):
            first = table.num_cached
            num_cacheable = coordinator.num_cacheable_tokens(num_tokens, manager)
            part = manager.cache(sequence, table, num_cacheable, num_known, boundaries)
            if self._changes is not None:
                self._changes.extend(self._stored(sequence, manager, table, first, part))

    def _stored(
        self, sequence: Sequence, manager: SingleTypeManager, table: BlockTable, first: int, part: int | None
    ) -> list[CacheChange]:
        """Return the changes of one group since it had `first` blocks with content, a block filled in part included."""
        request, group, span = sequence.request, manager.group, manager.hashes_per_block
        stored: list[CacheChange] = []
        if table.num_cached > first:
            kept = tuple(
                (index + 1) * span - 1
                for index in range(first, table.num_cached)
                if table.blocks[index] != NULL and self.blocks.is_cached(group, table.blocks[index])
            )
            stored.append(BlocksStored(request, first * span, table.num_cached * span, group, span, kept))
        if part is not None:
            stored.append(BlocksStored(request, part, part + 1, group))
        return stored

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
        alignment_tokens=scheduler_block_tokens(config.kv_groups),
        hash_tokens=config.block_size_tokens,
        enables_caching=config.enable_prefix_caching,
        max_model_len=config.limit_tokens,
        max_in_flight_tokens=config.max_in_flight_tokens,
        drops_last_block=speculation.drops_last_hit_block if speculation else False,
        hash_lookahead_tokens=config.num_hash_lookahead_tokens,
        num_draft_tokens=speculation.num_tokens if speculation else 0,
    )
