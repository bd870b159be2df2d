"""vLLM's scheduling with its OffloadingConnector: full blocks are copied to CPU memory, and prompts are loaded from it.

A request whose prompt goes on in CPU memory takes blocks for it and waits, beside the steps, until they are loaded.
Facts: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py and worker.py; vllm/v1/core/sched/
scheduler.py, WAITING_FOR_REMOTE_KVS; vllm/v1/worker/gpu/kv_connector.py, `post_forward`.
"""

from collections import deque
from dataclasses import dataclass, field

from blis_sim.engine.context import EngineContext
from blis_sim.engine.cpu_tier_config import OffloadConfig
from blis_sim.engine.kv_cache.offload_tier import LoadingKVCache, Lookup, OffloadTier, RequestUse
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.scheduled_step import Admission, ScheduledStep
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class BlockLoad:
    """Blocks on their way to the GPU for a waiting request."""

    sequence: Sequence
    identities: list[object]
    ends_at: Micros | None = None
    """Instant of their arrival; None before the step begins that they go with."""
    num_left: int = 0
    """Compositions after the end of a transfer until the scheduler is notified of it."""


@dataclass(slots=True)
class StepTransfers:
    """Transfers that go with one step and begin when it is computed: vLLM submits them behind its kernels."""

    loads: list[BlockLoad] = field(default_factory=list)
    stores: list[list[object]] = field(default_factory=list)


class OffloadingScheduler(VllmScheduler):
    """Every sequence is granted its tokens one by one, for the content of every block matters."""

    __slots__ = (
        *(
            "_pending_transfers",
            "_block_us",
            "_computes_until",
            "_is_planned_at",
            "_load_free_at",
            "_loading",
            "_loads",
            "_composed_transfers",
        ),
        *("_now", "_num_offered", "_store_free_at", "_storing", "_tier", "_uses"),
    )

    def __init__(self, context: EngineContext, reports_steps: bool, offload: OffloadConfig) -> None:
        self._loading = LoadingKVCache(context.config, context.cache_changes)
        super().__init__(context, reports_steps, has_cohort=False, kv=self._loading)
        self._has_tier = True
        self._tier = OffloadTier(offload.num_blocks)
        self._block_us = offload.block_us
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

    def step(self, at: Micros) -> None:
        if self.in_flight and not self._planned:
            return  # transfers end beside the steps, and vLLM's scheduler is notified when a step has ended
        super().step(at)

    def schedule(self, at: Micros) -> bool:
        self._now = at
        self._end_stores(at)
        self._composed_transfers = StepTransfers()
        is_scheduled = super().schedule(at)
        if is_scheduled:
            for tokens in self.in_flight[-1][2]:
                self._offer(tokens.sequence, min(tokens.sequence.num_computed_tokens, tokens.sequence.num_tokens))
            self._pending_transfers.append(self._composed_transfers)
        elif self._pending_transfers:
            self._pending_transfers[-1].loads += self._composed_transfers.loads
        else:
            self._begin_loads(self._composed_transfers.loads, max(at, self._computes_until))
        if not self.in_flight:
            self._plan_after_transfers()
        return is_scheduled

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at)
        transfers = self._pending_transfers.popleft()
        self._computes_until = ends_at
        self._begin_loads(transfers.loads, ends_at)
        for identities in transfers.stores:
            self._begin_store(identities, ends_at)
        return ends_at

    def _admission(self, sequence: Sequence, adapters: set[str] | None) -> Admission:
        """Whether a waiting sequence may join now, with what was loaded for it if it had to wait for that."""
        if super()._admission(sequence, adapters) is Admission.LATER:
            return Admission.LATER
        load = self._loads.get(sequence)
        if load is not None:
            return self._after_load(load)
        if not self.kv.enables_caching or not sequence.request.reads_prefix_cache or sequence in self._loading.loaded:
            return Admission.NOW
        hits = self.kv.cached_prefix(sequence)
        identities, is_pending = self._found_in_tier(sequence, len(hits))
        if is_pending:
            return Admission.LATER
        if not identities:
            return Admission.NOW
        if not self._loading.take_for_load(sequence, hits, len(identities), self._num_kept_free()):
            holds_all = self._loading.loaded and not self.explicit and not self.admitted
            return Admission.LATER if holds_all else Admission.BLOCKED
        load = BlockLoad(sequence, identities)
        self._tier.load(identities, len(hits), self._use_of(sequence))
        self._num_offered[sequence] = len(hits) + len(identities)
        self._loads[sequence] = load
        self._composed_transfers.loads.append(load)
        return Admission.LATER

    def _num_kept_free(self) -> int:
        """Return the blocks that a load must leave free, so that no two requests wait for each other's."""
        prefilling = [sequence for sequence in (*self.explicit, *self.admitted) if sequence.is_prefilling]
        reserved = sum(map(self._loading.num_lacking, (*prefilling, *self._loading.loaded)))
        return reserved + (self._watermark_blocks if self.explicit or self.admitted else 0)

    def _after_load(self, load: BlockLoad) -> Admission:
        if load.ends_at is None or load.ends_at > self._now:
            return Admission.LATER
        if load.num_left and self.in_flight:
            load.num_left -= 1
            return Admission.LATER
        for identity in load.identities:
            self._tier.unpin(identity)
        del self._loads[load.sequence]
        self._loading.finish_load(load.sequence)
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

    def _brought_tokens(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence has after its load; the last token is computed for its logits."""
        if sequence not in self._loading.loaded:
            return super()._brought_tokens(sequence)
        return min(len(sequence.block_ids) * self._block_size, sequence.num_tokens - 1)

    def _admit_waiting(self) -> None:
        if self._deferred:  # vLLM looks at those that it passed over before all others, preempted ones included
            deferred = self._deferred
            self.waiting = deque(sorted(self.waiting, key=lambda sequence: sequence not in deferred))
        super()._admit_waiting()
        for sequence in self.admitted:
            num_loaded = self._loading.loaded.pop(sequence, 0)
            if num_loaded and sequence.num_preemptions == 0:
                num_found = -(-sequence.num_cached_tokens // self._block_size) - num_loaded
                sequence.num_external_tokens = sequence.num_cached_tokens - num_found * self._block_size

    def preempt(self, victim: Sequence) -> None:
        super().preempt(victim)
        self._num_offered.pop(victim, None)

    def _leave(self, sequence: Sequence) -> None:
        load = self._loads.pop(sequence, None)
        if load is not None:
            for identity in load.identities:
                self._tier.unpin(identity)
            self._composed_transfers.loads = [each for each in self._composed_transfers.loads if each is not load]
        self._offer_last(sequence)
        super()._leave(sequence)

    # --- stores ---

    def _offer(self, sequence: Sequence, num_tokens: int) -> None:
        """Offer the full blocks of a sequence that were not offered before to CPU memory."""
        first, end = self._num_offered.get(sequence, 0), num_tokens // self._block_size
        if first >= end or not self.kv.enables_caching:
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

    def _begin_loads(self, loads: list[BlockLoad], at: Micros) -> None:
        for load in loads:
            self._load_free_at = max(self._load_free_at, float(at)) + len(load.identities) * self._block_us
            load.ends_at = round(self._load_free_at)
            load.num_left = self._depth

    def _begin_store(self, identities: list[object], at: Micros) -> None:
        self._store_free_at = max(self._store_free_at, float(at)) + len(identities) * self._block_us
        self._storing.append((round(self._store_free_at), identities))

    def _end_stores(self, at: Micros) -> None:
        """Note the blocks that have arrived in CPU memory."""
        while self._storing and self._storing[0][0] <= at:
            ends_at, identities = self._storing.pop(0)
            self._tier.stored(identities, ends_at)

    def _plan_after_transfers(self) -> None:
        """Compose again when the next transfer that a waiting sequence may need has ended: nothing else runs."""
        if not self.waiting:
            return
        ends = [load.ends_at for load in self._loads.values() if load.ends_at is not None]
        ends += [ends_at for ends_at, _ in self._storing[:1]]
        if ends and (soonest := max(min(ends), self._now + 1)) != self._is_planned_at:
            self._is_planned_at = soonest
            self._context.queue.push(soonest, EventKind.STEP)
