"""KV blocks that are copied to CPU memory, and prompts that are loaded from it, as with vLLM's OffloadingConnector.

A request whose prompt goes on in CPU memory takes blocks for it and waits, beside the steps, until they are loaded.
Facts: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py and worker.py; vllm/v1/core/sched/
scheduler.py, WAITING_FOR_REMOTE_KVS and `defer_block_free`; vllm/v1/worker/gpu/kv_connector.py, `post_forward`.
"""

from collections import deque
from dataclasses import dataclass

from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import EventKind
from blis_sim.engine.kv_cache.changes import CpuBlocksRemoved, CpuBlockStored, DeviceBlockStored
from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
from blis_sim.engine.kv_cache.offload_tier import Lookup, OffloadTier, Place, RequestUse
from blis_sim.engine.kv_cache.secondary_tiers import SecondaryTiers
from blis_sim.engine.kv_cache.single_type_manager import NULL, SingleTypeManager
from blis_sim.engine.memory.kv_groups import SLIDING, STATE
from blis_sim.engine.offloading import OffloadConfig
from blis_sim.engine.scheduler.batch import Admission, ScheduledTokens
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


@dataclass(slots=True, frozen=True)
class KnownLookup:
    """Result of a look-up for a prompt."""

    num_tokens: int
    """Length of the prompt, and of what a preempted request had computed."""
    num_local: int
    """Tokens that were found on the GPU."""
    num_loadable: int
    """Tokens after those that can be loaded; -1 where that is not known yet."""
    num_failures: int
    """Blocks that found no room in CPU memory."""
    num_released: int
    """Blocks of CPU memory that had become free to leave until then."""


class OffloadedRequest:
    """The state of a request in CPU memory: its blocks by group, and how many of each group were offered."""

    __slots__ = (
        *("boundary_tokens", "deferred_since", "has_load", "is_finished", "is_loaded", "is_offered", "known"),
        *("num_lookups", "num_offered", "num_stores", "num_transfers", "tables", "use", "watched"),
    )

    def __init__(self, num_groups: int) -> None:
        self.use = RequestUse()
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Blocks by position, `NULL` where another request has got the block."""
        self.num_offered = [0] * num_groups
        """Leading blocks that were offered to CPU memory, or that no later request can need."""
        self.num_transfers = 0
        """Transfers under way."""
        self.num_stores = 0
        """Transfers under way to CPU memory."""
        self.deferred_since: Micros = -1
        """When a look-up first had to be repeated later; -1 where none has."""
        self.has_load = False
        """Whether the request waits for its load, or for the news of it."""
        self.is_loaded = False
        """Whether what was loaded has not been made findable."""
        self.is_offered = False
        """Whether all of the prompt was offered."""
        self.is_finished = False
        self.boundary_tokens = 0
        """Where the beginning ends that the request shares with others, beyond what all groups hold of it."""
        self.num_lookups = 0
        """Look-ups since the request began to wait."""
        self.known: KnownLookup | None = None
        """Result of the latest look-up, as long as another one has the same."""
        self.watched: set[object] = set()
        """Blocks whose changes end that."""

    def restart(self, boundary_tokens: int) -> None:
        """Forget the blocks, for all of them are looked up anew."""
        self.boundary_tokens = boundary_tokens
        for table in self.tables:
            table.clear()
        self.is_offered = False
        self.num_offered = [0] * len(self.tables)


class Transfer:
    """Blocks on their way to CPU memory, or from there."""

    __slots__ = ("ends_at", "is_load", "is_urgent", "keys", "sequence", "took_us")

    def __init__(self, sequence: Sequence, keys: list[object], is_load: bool) -> None:
        self.sequence = sequence
        self.keys = keys
        self.is_load = is_load
        self.is_urgent = False
        """Whether the batch that it goes with has given the blocks to others, so that it begins before that."""
        self.took_us = 0.0
        self.ends_at: Micros = 0


class Batch:
    """A composed step, or an empty one, in the queue of vLLM's engine core."""

    __slots__ = ("is_step", "reports", "transfers")

    def __init__(self, is_step: bool, transfers: list[Transfer]) -> None:
        self.is_step = is_step
        self.transfers = transfers
        """Transfers that begin when the step is computed: vLLM submits them behind its kernels."""
        self.reports: list[Transfer] = []
        """Ended transfers that a worker reports with the outputs of the batch."""


def _named(key: object) -> tuple[object, int]:
    """Return the identity of a block's content, and its group."""
    assert isinstance(key, tuple)
    identity, group = key
    return identity, group


class Offloader:
    """CPU memory behind a KV cache, and the transfers in both directions."""

    __slots__ = (
        *("_alignment", "_allocated", "_being_loaded", "_block_us", "_computes_until", "_context", "_counters"),
        *("_deferred_frees", "_defers_frees", "_depth", "_finished", "_free_at", "_held", "_is_idle", "_is_observed"),
        *("_kv", "_loads", "_looked_up", "_lookup_order", "_managers", "_now", "_num_composed"),
        *("_num_processed", "_num_transfers", "_offload", "_planned_at", "_prefills", "_queue", "_requests"),
        *("_secondary", "_spec_blocks", "_spec_tokens", "_state_unit", "_tier", "_transfers", "_unbegun"),
        *("_watchers", "_windowed", "_windows", "hits", "num_loaded_tokens"),
    )

    def __init__(self, context: EngineContext, offload: OffloadConfig, kv: GroupedKVCache, depth: int) -> None:
        config = context.config
        self._context, self._offload, self._kv, self._depth = context, offload, kv, depth
        self._block_us = offload.block_us
        self._counters = context.counters.offload
        self._tier = OffloadTier(offload.num_blocks, self._counters, notes_moves=config.reports_kv_changes)
        self._secondary = SecondaryTiers(self._tier, offload, self._counters)
        self._is_observed = config.reports_kv_changes or bool(offload.devices)
        """Whether an idle core processes each end at once: it publishes what comes, and counts jobs under way."""
        self._managers = managers = kv.coordinator.managers
        self._windows = [manager.spec.window_blocks(0) for manager in managers]
        """Blocks before the end of a hit that each group needs; 0 where it needs all."""
        whole = [manager.group for manager in managers if not self._windows[manager.group]]
        windowed = [manager.group for manager in managers if self._windows[manager.group]]
        self._windowed = sorted(windowed, key=self._windows.__getitem__, reverse=True)
        self._lookup_order = [*whole, *self._windowed]
        sizes = {managers[group].block_tokens for group in whole}
        self._alignment = max(sizes or {manager.block_tokens for manager in managers}) if len(sizes) < 2 else 0
        """Tokens of which loads are multiples; 0 where groups that need all have blocks of several sizes."""
        states = [manager.block_tokens for manager in managers if manager.spec.kind == STATE]
        self._state_unit = max(states) if states and config.enable_prefix_caching else 0
        speculation = config.speculation
        self._spec_tokens = 0
        if speculation is not None and speculation.num_tokens:
            self._spec_tokens = 1 + speculation.num_tokens + speculation.num_lookahead_tokens
        self._spec_blocks = sum(
            [-(-self._spec_tokens // each.block_tokens) for each in managers if each.spec.kind != STATE]
        )
        self._defers_frees = depth > 1
        """Whether blocks that a step in flight may write are given back when that step has ended."""
        self._deferred_frees: deque[tuple[int, list[int]]] = deque()
        self._num_composed = self._num_processed = 0
        """Steps composed, and those whose outputs were processed."""
        self._now: Micros = 0
        self._requests: dict[Sequence, OffloadedRequest] = {}
        self._prefills: set[Sequence] = set()
        """Requests that hold blocks for a part of their prompt and need the rest."""
        self._finished: list[tuple[Sequence, bool]] = []
        """Requests that ended since the latest composition, and whether their clients were gone."""
        self._loads: list[Transfer] = []
        """Loads that go with the batch being composed."""
        self._being_loaded: set[object] = set()
        self._looked_up: list[object] | None = None
        """Blocks that a look-up has asked for, where this is noted."""
        self._watchers: dict[object, set[OffloadedRequest]] = {}
        """Requests for which a look-up may find something else when a block changes."""
        self._allocated: set[int] = set()
        """Blocks that requests got in the batch being composed."""
        self._queue: deque[Batch] = deque()
        self._held: list[Transfer] | None = None
        """Stores that begin behind all that was handed to the GPU by the next composition; None but in lockstep."""
        self._unbegun: deque[Batch] = deque()
        """Composed steps that have not begun."""
        self._transfers: list[Transfer] = []
        """Transfers that have begun and were not found ended."""
        self._num_transfers = 0
        """Transfers that the scheduler has not heard the end of."""
        self._free_at = [0.0, 0.0]
        """When the transfer to CPU memory, and that from there, ends that began last."""
        self._computes_until: Micros = 0
        """Instant at which the step that began last is computed."""
        self._is_idle = True
        """Whether no step was in flight after the latest composition, which was of none."""
        self._planned_at: Micros = -1
        self.hits: list[int] = []
        """Blocks that the latest look-up of a sequence without tokens has found on the GPU."""
        self.num_loaded_tokens = 0
        """Tokens that loads have brought or are bringing."""

    @property
    def num_blocks(self) -> int:
        """Blocks in CPU memory, those on their way included."""
        return len(self._tier)

    @property
    def num_behind(self) -> tuple[int, ...]:
        """Blocks that were read from devices behind CPU memory so far, and those that each device holds."""
        return self._secondary.num_blocks

    # --- requests come, are admitted and go ---

    def enter(self, sequence: Sequence) -> None:
        """Take note of a request that begins to wait."""
        self._requests[sequence] = OffloadedRequest(len(self._managers))

    def admission(self, sequence: Sequence, others_run: bool) -> Admission:
        """Whether a waiting sequence may join those that run; it may begin to wait for a load instead."""
        request, kv = self._requests[sequence], self._kv
        if request.has_load:
            return Admission.LATER
        if request.is_loaded:
            request.is_loaded = False
            kv.register(sequence, sequence.num_computed_tokens)
            sequence.num_computed_tokens = min(sequence.num_computed_tokens, sequence.num_tokens - 1)
        if sequence.num_computed_tokens:
            return Admission.NOW
        self.hits = hits = kv.cached_prefix(sequence)
        num_local = kv.num_found_tokens(hits)
        request.restart(kv.boundary_tokens(sequence))
        if not sequence.request.reads_prefix_cache:
            return Admission.NOW
        if request.num_transfers:
            return Admission.LATER
        self._counters.lookup_s.observe(0.0)
        num_loaded = self._loadable_tokens(sequence, request, num_local)
        if num_loaded < 0 or (num_loaded and self._awaits_other_load(sequence, num_local, num_loaded)):
            if request.deferred_since < 0:
                request.deferred_since = self._now
            return Admission.LATER
        self._end_deferral(request)
        if not num_loaded:
            return Admission.NOW
        config = self._context.config
        watermark = kv.watermark_blocks if others_run else 0
        if not kv.admit_load(sequence, num_loaded, config.reserve_full_prompt, watermark, self._num_reserved()):
            return Admission.BLOCKED
        kv.count_lookup(sequence, len(hits))
        self._begin_waiting(sequence, request, num_local, num_loaded)
        return Admission.LATER

    def _begin_waiting(self, sequence: Sequence, request: OffloadedRequest, num_local: int, num_loaded: int) -> None:
        """Let a sequence that has got its blocks wait for their content."""
        self._end_lookups(request)
        sequence.num_computed_tokens = num_computed = num_local + num_loaded
        if sequence.num_preemptions == 0:
            # The last token is computed whatever is loaded, for its logits.
            sequence.num_cached_tokens = min(num_computed, sequence.num_tokens - 1)
            sequence.num_external_tokens = sequence.num_cached_tokens - num_local
            self._counters.num_loaded_tokens += sequence.num_external_tokens
        keys: list[object] = []
        places: list[Place] = []
        for manager, table in zip(self._managers, self._kv.tables[sequence], strict=True):
            size, group = manager.block_tokens, manager.group
            end = -(-num_computed // size)
            first = -(-num_local // size)
            while first < end and table.blocks[first] == NULL:
                first += 1
            keys += [self._block_key(sequence, group, index) for index in range(first, end)]
            places += [((index + 1) * size, group) for index in range(first, end)]
            request.num_offered[group] = end
        self.note_blocks(sequence)
        self._tier.load(keys, places, request.use)
        load = Transfer(sequence, keys, is_load=True)
        request.has_load = True
        request.num_transfers = 1
        self._num_transfers += 1
        self._loads.append(load)
        self._prefills.add(sequence)
        self.num_loaded_tokens += num_loaded
        if self._kv.enables_caching:
            self._being_loaded.update(keys)

    def note_blocks(self, sequence: Sequence) -> None:
        """Note that a sequence has got all blocks of its tables in the batch being composed."""
        for table in self._kv.tables[sequence]:
            self._allocated.update(table.blocks)

    def joined(self, sequence: Sequence, num_left: int) -> None:
        """Note that a sequence has joined those that run, and how many of its tokens stay to be computed later."""
        request = self._requests[sequence]
        request.use.counted = None
        self._end_lookups(request)
        self.note_blocks(sequence)
        if num_left > 0:
            self._prefills.add(sequence)

    def _num_reserved(self) -> int:
        """Return the blocks that are kept for the rest of prompts under way, and for drafts."""
        return self._spec_blocks + sum([self._kv.num_remaining(each, self._spec_tokens) for each in self._prefills])

    def _end_deferral(self, request: OffloadedRequest) -> None:
        """Count how long a look-up was deferred, if it was."""
        if request.deferred_since >= 0:
            self._counters.deferred_s.observe((self._now - request.deferred_since) / 1e6)
            request.deferred_since = -1

    def resume(self, sequence: Sequence, num_tokens: int, others_run: bool) -> bool:
        """Give a sequence slots for the next tokens after what was loaded. False where too few blocks are free."""
        return self._kv.resume(sequence, num_tokens, self._context.config.reserve_full_prompt, others_run)

    def preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence."""
        self._prefills.discard(sequence)
        self.free(sequence)

    def leave(self, sequence: Sequence, is_aborted: bool) -> None:
        """Let a request end. Its blocks are given back, but for those that something still writes."""
        request = self._requests[sequence]
        self._end_deferral(request)
        self._end_lookups(request)
        self._prefills.discard(sequence)
        self._finished.append((sequence, is_aborted))
        self._kv.retire(sequence)
        if not request.has_load:
            self.free(sequence)

    def free(self, sequence: Sequence) -> None:
        """Give the blocks of a sequence back, at once or when the steps in flight have ended."""
        if self.may_lose_blocks(sequence):
            self._kv.release(sequence)
            return
        blocks = self._kv.detach(sequence)
        if blocks:
            self._deferred_frees.append((self._num_composed, blocks))

    def may_lose_blocks(self, sequence: Sequence) -> bool:
        """Whether a running sequence can be preempted: no step in flight writes its blocks."""
        return not self._defers_frees or not sequence.num_in_flight_tokens

    # --- look-ups ---

    def _block_key(self, sequence: Sequence, group: int, index: int) -> object:
        scale = self._managers[group].hashes_per_block
        return sequence.request.blocks.identity((index + 1) * scale - 1), group

    def _loadable_tokens(self, sequence: Sequence, request: OffloadedRequest, num_local: int) -> int:
        """Return what `_find_loadable` does. A request that waits on is looked up again after a change alone."""
        tier, counters = self._tier, self._counters
        self._forget_changed()
        known = request.known
        if (
            known is not None
            and (known.num_tokens, known.num_local) == (sequence.num_tokens, num_local)
            and (not known.num_failures or known.num_released == tier.num_released)
        ):
            if known.num_failures:
                counters.allocated_chunks.observe(1, known.num_failures)
                counters.num_allocation_failures += known.num_failures
                counters.num_promotion_failures += known.num_failures
            return known.num_loadable
        request.num_lookups += 1
        num_failures = counters.num_allocation_failures
        if request.num_lookups == 1:  # most requests are looked up once
            return self._find_loadable(sequence, num_local)
        looked_up: list[object] = []
        self._looked_up = looked_up
        num_loadable = self._find_loadable(sequence, num_local)
        self._looked_up = None
        num_failures = counters.num_allocation_failures - num_failures
        request.known = KnownLookup(sequence.num_tokens, num_local, num_loadable, num_failures, tier.num_released)
        for key in looked_up:
            if key not in request.watched:
                request.watched.add(key)
                self._watchers.setdefault(key, set()).add(request)
        return num_loadable

    def _forget_changed(self) -> None:
        """Forget what look-ups have found where blocks have changed."""
        changed = self._tier.changed
        if not changed:
            return
        if self._watchers:
            for key in changed:
                for request in self._watchers.get(key, ()):
                    request.known = None
        changed.clear()

    def _end_lookups(self, request: OffloadedRequest) -> None:
        """Watch blocks no more for a request that has ended its waiting."""
        request.known = None
        request.num_lookups = 0
        for key in request.watched:
            watchers = self._watchers[key]
            watchers.discard(request)
            if not watchers:
                del self._watchers[key]
        request.watched.clear()

    def _find_loadable(self, sequence: Sequence, num_local: int) -> int:  # noqa: C901 - one loop of vLLM's
        """Return how many tokens after the first `num_local` can be loaded; -1 where that is not known yet.

        vLLM's `_lookup_complete_chunks`: a group may shorten the hit of groups before it, which are looked up again.
        """
        most, num_hit = sequence.num_tokens, 0
        if self._windowed:
            most -= 1
            if self._state_unit:
                most -= most % self._state_unit
        is_deferred = False
        groups = self._lookup_order
        while groups:
            round_groups, groups = groups, []
            looked_up_window = False
            for group in round_groups:
                manager, window = self._managers[group], self._windows[group]
                size = manager.block_tokens
                most = min(most, sequence.num_tokens // size * size)
                if most - num_local < size:
                    return 0
                first, end = num_local // size, -(-most // size)
                if window:
                    num_found = self._find_window(sequence, group, first, end, window, manager.spec.window_blocks(most))
                else:
                    num_found = self._find_leading(sequence, group, first, end)
                if num_found == 0:
                    return 0
                if num_found < 0:
                    is_deferred = True
                else:
                    most = min(most, size * (first + num_found))
                num_new = most - num_local
                if num_new < size:
                    return 0
                if num_new < num_hit:
                    if is_deferred:
                        is_deferred = False
                        groups = self._lookup_order
                    elif looked_up_window and not groups:
                        groups = self._windowed
                looked_up_window |= window > 0
                num_hit = num_new
        return -1 if is_deferred else num_hit

    def _find_leading(self, sequence: Sequence, group: int, first: int, end: int) -> int:
        """Return how many blocks from `first` on CPU memory holds without a gap; -1 where some are on their way."""
        num_found = 0
        is_pending = False
        for index in range(first, end):
            found = self._look_up(sequence, group, index)
            if found is Lookup.MISS:
                break
            is_pending |= found is not Lookup.HIT
            num_found += 1
        return -1 if is_pending else num_found

    def _find_window(self, sequence: Sequence, group: int, first: int, end: int, window: int, initial: int) -> int:
        """Return where the last run of `window` blocks ends that CPU memory holds, counted from `first`.

        The run that ends at `end` needs `initial` blocks. -1 where some of the run are on their way.
        """
        num_in_a_row, required = 0, initial
        is_pending = is_open = False
        for index in range(end - 1, first - 1, -1):
            found = self._look_up(sequence, group, index)
            if found is Lookup.MISS or found is Lookup.RETRY:
                num_in_a_row, required = 0, window
                is_pending = False
                is_open |= found is Lookup.RETRY
            else:
                is_pending |= found is Lookup.PENDING
                num_in_a_row += 1
            if num_in_a_row == required:
                return -1 if is_pending or is_open else index - first + required
        return -1 if is_pending or is_open else num_in_a_row

    def _look_up(self, sequence: Sequence, group: int, index: int) -> Lookup:
        """Return the state of a block in CPU memory, to which it may begin to come from a device."""
        key = self._block_key(sequence, group, index)
        if self._looked_up is not None:
            self._looked_up.append(key)
        found = self._tier.lookup(key)
        if self._offload.devices:
            self._secondary.count_lookup(0, key, found, self._requests[sequence].use)
        if found is Lookup.MISS:
            place = (index + 1) * self._managers[group].block_tokens, group
            return self._secondary.lookup(key, place, self._requests[sequence].use)
        return found

    def _awaits_other_load(self, sequence: Sequence, num_local: int, num_hit: int) -> bool:
        """Whether another request is loading a block of a hit, which can be found here then."""
        if not self._being_loaded:
            return False
        total = num_local + num_hit
        for manager in self._managers:
            size, group = manager.block_tokens, manager.group
            first, end = num_local // size, -(-total // size)
            if self._windows[group]:
                first = max(first, end - manager.spec.window_blocks(total))
            for index in range(first, end):
                if self._block_key(sequence, group, index) in self._being_loaded:
                    return True
        return False

    # --- the composition of a batch ---

    def begin_composition(self, at: Micros) -> None:
        """Begin to compose a batch at `at`."""
        queue = self._queue
        if self._is_idle and at > self._now:  # an idle core composes on and on, and has heard of all that ended before
            ended = self._take_ended(at - 1)
            for transfer in sorted(ended, key=lambda transfer: transfer.ends_at):
                self._process_ended([transfer], transfer.ends_at)
            self._report_moves()
        self._is_idle = False
        while len(queue) == self._depth and not queue[0].is_step:
            self._process_batch(queue.popleft(), at)
        self._now = at
        if self._held:
            self._begin_behind(self._held)
            self._held.clear()
        self._secondary.hear(at)
        self._forget_changed()
        self._loads = []
        self._allocated.clear()

    def composed(self, granted: dict[Sequence, int], admitted: list[Sequence]) -> None:
        """Offer the blocks that a composed step fills, and let transfers begin with it."""
        self._note_tables(granted, admitted)
        stores = self._new_stores(granted)
        self._begin_behind([each for each in stores if each.is_urgent])
        batch = Batch(True, [*self._loads, *self._not_held([each for each in stores if not each.is_urgent])])
        self._num_composed += 1
        self._unbegun.append(batch)
        self._end_composition(batch)

    def advanced(self, tokens: list[ScheduledTokens]) -> None:
        """Note which sequences compute the rest of their prompts in the composed step."""
        for each in tokens:
            if not each.sequence.is_prefilling:
                self._prefills.discard(each.sequence)

    def composed_nothing(self, is_idle: bool, has_waiting: bool) -> None:
        """Let transfers begin with the step composed last, or at once. `is_idle` says that no step is in flight.

        An idle engine composes again when the next transfer that a waiting request may need has ended.
        """
        self._note_tables({}, [])
        stores = self._new_stores({})
        if self._held is None:
            self._begin_behind([*self._loads, *stores])
        else:
            self._begin_behind([*[each for each in stores if each.is_urgent], *self._loads])
            self._held += [each for each in stores if not each.is_urgent]
        self._end_composition(Batch(False, []))
        if not is_idle:
            return
        self._is_idle = True
        if (has_waiting or self._is_observed) and not self._has_reports():
            self._plan_after_transfers()

    def _not_held(self, stores: list[Transfer]) -> list[Transfer]:
        """Return the stores that begin with the step being composed: in lockstep none, for vLLM's worker holds them."""
        if self._held is None:
            return stores
        self._held += stores
        return []

    @property
    def has_work(self) -> bool:
        """Whether requests have ended since the latest composition, or transfers are under way."""
        return bool(self._finished or self._num_transfers or self._secondary.has_jobs)

    def needs_composition(self, at: Micros) -> bool:
        """Whether an idle core composes at `at` with another result."""
        if self.has_news(at):
            return True
        self._queue.clear()
        self._is_idle, self._now = True, at
        if self._is_observed:
            self._plan_after_transfers()
        return False

    def has_news(self, at: Micros) -> bool:
        """Whether requests or transfers have ended, or loads or reads have begun, since the latest composition.

        A request may wait for such a load and let others pass.
        """
        has_ended = self._finished or any(transfer.ends_at <= at for transfer in self._transfers)
        return bool(has_ended or self._loads or self._has_reports() or self._secondary.is_due(at))

    def _has_reports(self) -> bool:
        return bool(self._secondary.written) or any(batch.reports for batch in self._queue)

    def _end_composition(self, batch: Batch) -> None:
        self._secondary.end_composition(self._now)
        batch.reports = self._take_ended(self._now)
        self._queue.append(batch)
        self._tier.note_usage()

    def step_processed(self, at: Micros) -> None:
        """Take in what ended before the step was handed over whose outputs have just been processed."""
        queue = self._queue
        while not queue[0].is_step:
            self._process_batch(queue.popleft(), at)
        self._process_batch(queue.popleft(), at)

    def empty_processed(self, at: Micros) -> None:
        """Take in what ended before the first batch in the queue was handed over, if that is empty."""
        queue = self._queue
        if queue and not queue[0].is_step:
            self._process_batch(queue.popleft(), at)

    def step_ended(self) -> None:
        """Give back blocks that waited for the step whose outputs are to be processed now."""
        self._num_processed += 1
        frees = self._deferred_frees
        while frees and frees[0][0] <= self._num_processed:
            self._kv.give_back(frees.popleft()[1])

    # --- stores ---

    def _note_tables(self, granted: dict[Sequence, int], admitted: list[Sequence]) -> None:
        """Note the new blocks of the sequences in a step, and which blocks of others are theirs now."""
        new = set(admitted)
        ends: dict[OffloadedRequest, list[int]] = {}
        for sequence in granted:
            request = self._requests[sequence]
            if sequence in new:
                for known in request.tables:
                    known.clear()
            ends[request] = [len(known) for known in request.tables]
            for known, table in zip(request.tables, self._kv.tables[sequence], strict=True):
                added = table.blocks[len(known) :]
                known += added
                self._allocated.update(added)
        self._allocated.discard(NULL)
        if not self._windowed or not self._allocated:
            return
        for sequence, request in self._requests.items():
            end_of = ends.get(request)
            for group in self._windowed:
                known, most = request.tables[group], sequence.input_tokens // self._managers[group].block_tokens
                end = min(len(known) if end_of is None else end_of[group], most)
                for index in range(request.num_offered[group], end):
                    if known[index] in self._allocated:
                        known[index] = NULL

    def _new_stores(self, granted: dict[Sequence, int]) -> list[Transfer]:
        """Offer full blocks to CPU memory. Returns the transfers of those that it takes."""
        stores = self._state_stores()
        for sequence, num_tokens in granted.items():
            self._offer_blocks(sequence, sequence.num_computed_tokens + num_tokens, stores)
        finished, self._finished = self._finished, []
        for sequence, is_aborted in finished:
            num_stores = len(stores)
            self._offer_blocks(sequence, sequence.num_computed_tokens if is_aborted else sequence.num_tokens, stores)
            for store in stores[num_stores:]:
                store.is_urgent = self._loses_blocks(store)
        for sequence, _ in finished:
            request = self._requests[sequence]
            request.is_finished = True
            self._tier.finish(request.use)
            if not request.num_stores:
                self._secondary.finish(request.use)
            if not request.num_transfers:
                del self._requests[sequence]
        return stores

    def _loses_blocks(self, store: Transfer) -> bool:
        """Whether blocks of a request that has ended were given to others in the batch being composed."""
        request = self._requests[store.sequence]
        for key in store.keys:
            num_tokens, group = request.use.places[key]
            index = num_tokens // self._managers[group].block_tokens - 1
            if not self._windows[group] and request.tables[group][index] in self._allocated:
                return True
        return False

    def _state_stores(self) -> list[Transfer]:
        """Offer the recurrent states that have become findable since the latest composition, request by request."""
        by_request: dict[Sequence, list[tuple[int, int]]] = {}
        for manager in self._managers:
            for sequence, num_tokens in manager.take_kept_states():
                by_request.setdefault(sequence, []).append((manager.group, num_tokens))
        stores: list[Transfer] = []
        for sequence, states in by_request.items():
            if sequence not in self._requests:
                continue
            for group, num_tokens in states:
                if num_tokens > sequence.input_tokens:
                    continue
                index = num_tokens // self._managers[group].block_tokens - 1
                self._store_blocks(sequence, [(group, index)], stores)
        return stores

    def _offer_blocks(self, sequence: Sequence, num_tokens: int, stores: list[Transfer]) -> None:
        """Offer the full blocks of a request's prompt that were not offered before.

        vLLM's `offload_prompt_only` is set by default: replies stay on the GPU.
        """
        request, kv = self._requests[sequence], self._kv
        if request.is_offered:
            return
        num_tokens = min(num_tokens, sequence.input_tokens)
        boundaries = [sequence.input_tokens - 1]
        if request.boundary_tokens:
            boundaries.append(request.boundary_tokens)
        indexes: list[tuple[int, int]] = []
        ends: list[int] = []
        for manager, table in zip(self._managers, request.tables, strict=True):
            group = manager.group
            end = min(num_tokens // manager.block_tokens, len(table))
            ends.append(end)
            if manager.spec.kind == STATE and kv.enables_caching:
                continue  # offered one by one, when they become findable
            indexes += [
                (group, index)
                for index in range(request.num_offered[group], end)
                if table[index] != NULL and self._is_reachable(manager, index, boundaries)
            ]
        if not indexes or self._store_blocks(sequence, indexes, stores):
            request.num_offered = [max(before, end) for before, end in zip(request.num_offered, ends, strict=True)]
            request.is_offered = all(
                offered >= sequence.input_tokens // manager.block_tokens
                for offered, manager in zip(request.num_offered, self._managers, strict=True)
            )

    def _is_reachable(self, manager: SingleTypeManager, index: int, boundaries: list[int]) -> bool:
        """Whether a later request may load a block: one that goes on from one of `boundaries`."""
        size, alignment = manager.block_tokens, self._alignment
        if manager.spec.kind == STATE:
            return any(boundary // alignment * alignment // size - 1 == index for boundary in boundaries)
        if manager.spec.kind != SLIDING or not alignment or alignment % size:
            return True
        needed = -(-(manager.spec.reach_tokens - 1) // size)
        for boundary in boundaries:
            end = boundary // alignment * alignment // size
            if end - needed <= index < end:
                return True
        return False

    def _store_blocks(self, sequence: Sequence, indexes: list[tuple[int, int]], stores: list[Transfer]) -> bool:
        """Offer blocks by group and index. Returns False where CPU memory has no room for them."""
        request = self._requests[sequence]
        keys = [self._block_key(sequence, group, index) for group, index in indexes]
        places = [((index + 1) * self._managers[group].block_tokens, group) for group, index in indexes]
        stored = self._tier.store(keys, places, request.use)
        if stored is None:
            return False
        if stored:
            stores.append(Transfer(sequence, stored, is_load=False))
            request.num_transfers += 1
            request.num_stores += 1
            self._num_transfers += 1
        return True

    # --- transfers, one after the other in each direction ---

    def enable_lockstep(self) -> None:
        """Let callers report dummy batches, too, behind which transfers may come."""
        self._held = []

    def dummy_handed_over(self) -> None:
        """Note that a batch without tokens stands before the GPU."""
        self._unbegun.append(Batch(True, []))

    def step_began(self, computed_at: Micros) -> None:
        """Let the transfers that go with a step begin when it is computed."""
        self._computes_until = computed_at
        self._begin_transfers(self._unbegun.popleft().transfers, computed_at)

    def _begin_behind(self, transfers: list[Transfer]) -> None:
        """Let transfers begin when all steps are computed that were composed before."""
        if self._unbegun:
            self._unbegun[-1].transfers += transfers
        else:
            self._begin_transfers(transfers, max(self._now, self._computes_until))

    def _begin_transfers(self, transfers: list[Transfer], at: Micros) -> None:
        for transfer in transfers:
            direction = int(transfer.is_load)
            transfer.took_us = len(transfer.keys) * self._block_us
            self._free_at[direction] = ends_at = max(self._free_at[direction], float(at)) + transfer.took_us
            transfer.ends_at = round(ends_at)
        self._transfers += transfers

    def _take_ended(self, at: Micros) -> list[Transfer]:
        """Return the transfers that have ended by `at`; they are not under way any more."""
        ended = [transfer for transfer in self._transfers if transfer.ends_at <= at]
        if ended:
            self._transfers = [transfer for transfer in self._transfers if transfer.ends_at > at]
        return ended

    def _process_batch(self, batch: Batch, at: Micros) -> None:
        self._process_ended(batch.reports, at)
        self._report_moves()

    def _report_moves(self) -> None:
        """Report what came to CPU memory, left it, and came to devices, behind the changes on the GPU.

        vLLM does so for each batch.
        """
        moved, changes, written = self._tier.moved, self._context.cache_changes, self._secondary.written
        if moved is None or changes is None:
            return
        for has_come, keys in moved:
            by_group: dict[int, list[object]] = {}
            for key in keys:
                identity, group = _named(key)
                if has_come:
                    changes.append(CpuBlockStored(identity, group))
                else:
                    by_group.setdefault(group, []).append(identity)
            for group, identities in by_group.items():
                changes.append(CpuBlocksRemoved(tuple(identities), group))
        moved.clear()
        for locality, keys in written:
            changes += [DeviceBlockStored(*_named(key), locality) for key in keys]
        written.clear()

    def _process_ended(self, ended: list[Transfer], at: Micros) -> None:
        """Take note of ended transfers at `at`, as vLLM's scheduler does with the outputs of a batch."""
        for transfer in ended:
            sequence, keys = transfer.sequence, transfer.keys
            request = self._requests[sequence]
            request.num_transfers -= 1
            self._num_transfers -= 1
            counts = self._counters.loads if transfer.is_load else self._counters.stores
            counts.add(len(keys) * self._offload.block_bytes, transfer.took_us / 1e6, self._offload.num_gpus)
            if transfer.is_load:
                for key in keys:
                    self._tier.unpin(key)
                self._being_loaded.difference_update(keys)
                request.has_load = False
                if sequence.outcome is None:
                    request.is_loaded = True
                else:  # the client is gone
                    self._kv.release(sequence)
            else:
                request.num_stores -= 1
                self._tier.stored(keys, transfer.ends_at)
                self._secondary.write(keys, at)
                if request.is_finished and not request.num_stores:
                    self._secondary.finish(request.use)
            if request.is_finished and not request.num_transfers:
                del self._requests[sequence]

    def _plan_after_transfers(self) -> None:
        """Plan a composition when the next transfer has ended: nothing else runs."""
        ends = [transfer.ends_at for transfer in self._transfers]
        if (device_at := self._secondary.next_at) is not None:
            ends.append(device_at)
        if ends and (soonest := max(min(ends), self._now + 1)) != self._planned_at:
            self._planned_at = soonest
            self._context.queue.push(soonest, EventKind.STEP)
