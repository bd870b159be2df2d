"""KV blocks that are copied to CPU memory, and prompts that are loaded from it, as with vLLM's OffloadingConnector.

A request whose prompt goes on in CPU memory takes blocks for it and waits, beside the steps, until they are loaded.
Facts: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py and worker.py; vllm/v1/core/sched/
scheduler.py, WAITING_FOR_REMOTE_KVS; vllm/v1/worker/gpu/kv_connector.py, `post_forward`.
"""

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import EventKind
from blis_sim.engine.kv_cache.offload_tier import LoadingKVCache, Lookup, OffloadTier, RequestUse
from blis_sim.engine.offloading import OffloadConfig
from blis_sim.engine.scheduler.batch import Admission, ScheduledTokens
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class BlockLoad:
    """Blocks on their way to the GPU for a waiting request."""

    sequence: Sequence
    identities: list[object]
    took_us: float = 0.0
    ends_at: Micros | None = None
    """Instant of their arrival; None before the step begins that they go with."""
    num_left: int = 0
    """Compositions after the end of a transfer until the scheduler is notified of it."""


@dataclass(slots=True)
class StepTransfers:
    """Transfers that go with one step and begin when it is computed: vLLM submits them behind its kernels."""

    loads: list[BlockLoad] = field(default_factory=list)
    stores: list[list[object]] = field(default_factory=list)


class Offloader:
    """CPU memory behind a KV cache of which every block has a name, and the transfers in both directions."""

    __slots__ = (
        *("_block_size", "_block_us", "_composed_transfers", "_computes_until", "_context", "_counters"),
        *("_deferred_since", "_is_planned_at", "_kv", "_load_free_at", "_loads", "_now", "_num_offered", "_offload"),
        *("_pending_transfers", "_store_free_at", "_storing", "_tier", "_uses"),
    )

    def __init__(self, context: EngineContext, offload: OffloadConfig, kv: LoadingKVCache) -> None:
        self._context, self._offload, self._kv = context, offload, kv
        self._block_size = context.config.block_size_tokens
        self._block_us = offload.block_us
        self._counters = context.counters.offload
        self._tier = OffloadTier(offload.num_blocks, self._counters)
        self._deferred_since: dict[Sequence, Micros] = {}
        """When the look-up of a waiting request first found blocks that were on their way."""
        self._now: Micros = 0
        self._loads: dict[Sequence, BlockLoad] = {}
        self._composed_transfers = StepTransfers()
        """Transfers that begin with the step that is being composed."""
        self._pending_transfers: deque[StepTransfers] = deque()
        """For each composed step that has not begun, the transfers that begin with it."""
        self._storing: list[tuple[Micros, list[object]]] = []
        """Blocks on their way to CPU memory, and the instants of their arrival."""
        self._computes_until: Micros = 0
        """Instant at which the step that began last is computed."""
        self._load_free_at: float = 0.0
        self._store_free_at: float = 0.0
        self._uses: dict[Sequence, RequestUse] = {}
        self._num_offered: dict[Sequence, int] = {}
        """Leading blocks of each request that were offered to CPU memory."""
        self._is_planned_at: Micros = -1

    # --- the composition of a step ---

    def begin_composition(self, at: Micros) -> None:
        """Note what has arrived in CPU memory by `at`, when a step is composed."""
        self._now = at
        self._end_stores(at)
        self._composed_transfers = StepTransfers()

    def composed(self, tokens: list[ScheduledTokens]) -> None:
        """Offer the blocks that a composed step fills, and let transfers begin with it."""
        for each in tokens:
            sequence = each.sequence
            self._offer(sequence, min(sequence.num_computed_tokens, sequence.num_tokens))
        self._pending_transfers.append(self._composed_transfers)
        self._tier.note_usage()

    def composed_nothing(self, depth: int, is_idle: bool, has_waiting: bool) -> None:
        """Let loads begin with the step composed last, or at once. `is_idle` says that no step is in flight.

        An idle engine composes again when the next transfer that a waiting request may need has ended.
        """
        loads = self._composed_transfers.loads
        if self._pending_transfers:
            self._pending_transfers[-1].loads += loads
        else:
            self._begin_loads(loads, max(self._now, self._computes_until), depth)
        self._tier.note_usage()
        if is_idle and has_waiting:
            self._plan_after_transfers()

    def admission(self, sequence: Sequence, running: SequenceOf[Sequence], has_steps: bool) -> Admission:
        """Whether a waiting sequence may join those that run, with what was loaded for it if it had to wait for that.

        `has_steps` says whether any step is in flight.
        """
        load = self._loads.get(sequence)
        if load is not None:
            return self._after_load(load, has_steps)
        kv = self._kv
        if not kv.enables_caching or not sequence.request.reads_prefix_cache or sequence in kv.loaded:
            return Admission.NOW
        hits = kv.cached_prefix(sequence)
        identities, is_pending = self._found_in_tier(sequence, len(hits))
        self._counters.lookup_s.observe(0.0)
        if is_pending:
            self._deferred_since.setdefault(sequence, self._now)
            return Admission.LATER
        self._end_deferral(sequence)
        if not identities:
            return Admission.NOW
        if not kv.take_for_load(sequence, hits, len(identities), self._num_kept_free(running)):
            return Admission.LATER if kv.loaded and not running else Admission.BLOCKED
        load = BlockLoad(sequence, identities)
        self._tier.load(identities, len(hits), self._use_of(sequence))
        self._num_offered[sequence] = len(hits) + len(identities)
        self._loads[sequence] = load
        self._composed_transfers.loads.append(load)
        return Admission.LATER

    def _end_deferral(self, sequence: Sequence) -> None:
        """Count how long blocks that were on their way have deferred a request, if they have."""
        since = self._deferred_since.pop(sequence, None)
        if since is not None:
            self._counters.deferred_s.observe((self._now - since) / 1e6)

    def _num_kept_free(self, running: SequenceOf[Sequence]) -> int:
        """Return the blocks that a load must leave free, so that no two requests wait for each other's."""
        prefilling = [sequence for sequence in running if sequence.is_prefilling]
        reserved = sum(map(self._kv.num_lacking, (*prefilling, *self._kv.loaded)))
        return reserved + (self._kv.watermark_blocks if running else 0)

    def _after_load(self, load: BlockLoad, has_steps: bool) -> Admission:
        if load.ends_at is None or load.ends_at > self._now:
            return Admission.LATER
        if load.num_left and has_steps:
            load.num_left -= 1
            return Admission.LATER
        for identity in load.identities:
            self._tier.unpin(identity)
        del self._loads[load.sequence]
        num_bytes = len(load.identities) * self._offload.block_bytes
        self._counters.loads.add(num_bytes, load.took_us / 1e6, self._offload.num_gpus)
        self._kv.finish_load(load.sequence)
        return Admission.NOW

    def _found_in_tier(self, sequence: Sequence, num_hits: int) -> tuple[list[object], bool]:
        """Return the blocks after the first `num_hits` that CPU memory holds, and whether some are on their way."""
        found: list[object] = []
        is_pending = False
        for index in range(num_hits, sequence.num_tokens // self._block_size):
            identity = sequence.request.blocks.identity(index)
            lookup = self._tier.lookup(identity)
            if lookup is Lookup.MISS:
                break
            is_pending |= lookup is Lookup.PENDING
            found.append(identity)
        return found, is_pending

    def loaded_tokens(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence has after its load, 0 without one; the last token is computed for its
        logits."""
        if sequence not in self._kv.loaded:
            return 0
        return min(len(sequence.block_ids) * self._block_size, sequence.num_tokens - 1)

    def admitted(self, sequences: list[Sequence]) -> None:
        """Count the tokens loaded for sequences that have joined the batch as external."""
        for sequence in sequences:
            num_loaded = self._kv.loaded.pop(sequence, 0)
            if num_loaded and sequence.num_preemptions == 0:
                num_found = -(-sequence.num_cached_tokens // self._block_size) - num_loaded
                sequence.num_external_tokens = sequence.num_cached_tokens - num_found * self._block_size

    def preempted(self, sequence: Sequence) -> None:
        """Offer the blocks of a sequence again, which computes them anew."""
        self._num_offered.pop(sequence, None)

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence that ends, and offer what it has computed since the last step."""
        load = self._loads.pop(sequence, None)
        self._end_deferral(sequence)
        if load is not None:
            for identity in load.identities:
                self._tier.unpin(identity)
            self._composed_transfers.loads = [each for each in self._composed_transfers.loads if each is not load]
        self._offer_last(sequence)

    # --- stores ---

    def _offer(self, sequence: Sequence, num_tokens: int) -> None:
        """Offer the full blocks of a sequence that were not offered before to CPU memory."""
        first, end = self._num_offered.get(sequence, 0), num_tokens // self._block_size
        if first >= end or not self._kv.enables_caching:
            return
        identities = [sequence.request.blocks.identity(index) for index in range(first, end)]
        stored = self._tier.store(identities, first, self._use_of(sequence))
        if stored is None:
            return
        self._num_offered[sequence] = end
        if stored:
            self._composed_transfers.stores.append(stored)

    def _offer_last(self, sequence: Sequence) -> None:
        """Offer what a sequence that leaves has computed since the last step; its last token was not computed."""
        if sequence not in self._uses:
            return
        self._composed_transfers = StepTransfers()
        if sequence.running:
            most = min(sequence.num_computed_tokens - sequence.num_in_flight_tokens, sequence.num_tokens - 1)
            self._offer(sequence, max(most, 0))
        for identities in self._composed_transfers.stores:
            self._begin_store(identities, self._context.clock)
        self._composed_transfers = StepTransfers()
        self._num_offered.pop(sequence, None)
        self._tier.finish(self._uses.pop(sequence))

    def _use_of(self, sequence: Sequence) -> RequestUse:
        return self._uses.setdefault(sequence, RequestUse())

    # --- transfers, one after the other in each direction ---

    def step_began(self, computed_at: Micros, depth: int) -> None:
        """Let the transfers that go with a step begin when it is computed."""
        transfers = self._pending_transfers.popleft()
        self._computes_until = computed_at
        self._begin_loads(transfers.loads, computed_at, depth)
        for identities in transfers.stores:
            self._begin_store(identities, computed_at)

    def _begin_loads(self, loads: list[BlockLoad], at: Micros, depth: int) -> None:
        for load in loads:
            self._load_free_at = max(self._load_free_at, float(at)) + len(load.identities) * self._block_us
            load.took_us = len(load.identities) * self._block_us
            load.ends_at = round(self._load_free_at)
            load.num_left = depth

    def _begin_store(self, identities: list[object], at: Micros) -> None:
        self._store_free_at = max(self._store_free_at, float(at)) + len(identities) * self._block_us
        self._storing.append((round(self._store_free_at), identities))

    def _end_stores(self, at: Micros) -> None:
        """Note the blocks that have arrived in CPU memory."""
        while self._storing and self._storing[0][0] <= at:
            ends_at, identities = self._storing.pop(0)
            self._tier.stored(identities, ends_at)
            num_bytes, took_s = len(identities) * self._offload.block_bytes, len(identities) * self._block_us / 1e6
            self._counters.stores.add(num_bytes, took_s, self._offload.num_gpus)

    def _plan_after_transfers(self) -> None:
        """Plan a composition when the next transfer has ended: nothing else runs."""
        ends = [load.ends_at for load in self._loads.values() if load.ends_at is not None]
        ends += [ends_at for ends_at, _ in self._storing[:1]]
        if ends and (soonest := max(min(ends), self._now + 1)) != self._is_planned_at:
            self._is_planned_at = soonest
            self._context.queue.push(soonest, EventKind.STEP)
