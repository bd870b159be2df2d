"""BLIS's scheduler: a step is decided and applied when it begins. Variants load LoRA adapters or blocks of devices."""

from blis_sim.engine.compilation import mypyc_attr
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Event, EventKind, Finished, Preempted, Scheduled, StepsDone
from blis_sim.engine.kv_cache.blis_cache import (
    OFFLOAD_POLICIES,
    ChainedKVCache,
    CountingPromptCache,
    KVCache,
    PromptCache,
)
from blis_sim.engine.lora import AdapterLoader, LoraSettings
from blis_sim.engine.offloading import CpuTierConfig, OffloadChain
from blis_sim.engine.scheduler.batch import (
    MAX_REPEATED_STEPS,
    MAX_STEPS_AT_ONCE,
    NO_NEWCOMERS,
    Admission,
    BatchScheduler,
    ScheduledStep,
    ScheduledTokens,
    shape_of,
)
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import VICTIMS
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

# Steps as BLIS takes them: all of a step is decided and applied when it begins, and reported when it ends.
#
# The rules and their order are BLIS's (sim/batch_formation.go, sim/simulator.go), which follow vLLM's V1 scheduler:
# continuous batching with chunked prefill under one token budget, and preemption by recomputation when blocks run
# out.

_NO_LIMIT = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class BlisScheduler(BatchScheduler):
    """One step after the other, each composed when the one before ends."""

    __slots__ = (
        "_alone",
        "_asks_admission",
        "_choose_victim",
        "_counting",
        "_holds_while_waiting",
        "kv",
        "num_deferred",
    )

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: KVCache | None = None
    ) -> None:
        """`kv` is a cache other than the usual one, without a cohort."""
        config = context.config
        size = config.total_kv_blocks, config.block_size_tokens
        self._counting = counting = CountingPromptCache(*size) if has_cohort and kv is None else None
        self.kv: PromptCache = counting or kv or KVCache(*size)
        super().__init__(context, reports_steps, 1, config.max_model_len or _NO_LIMIT, self.kv, counting)
        self._ends_early = self._counts_taken_blocks = True
        self._choose_victim = VICTIMS[config.preemption_policy]
        self.num_deferred = 0
        self._asks_admission = False
        self._holds_while_waiting = False
        """Whether waiting sequences may hold blocks: prompts of another instance, or what came back from CPU memory."""
        self._alone: tuple[Sequence | None, int, int] = (None, 0, 0)
        """The latest that found no block while nothing else ran, all admissions until then, and the queue's length."""

    def reserve(self, sequence: Sequence) -> bool:
        """Allocate blocks for a whole prompt that another instance computes; False, unchanged, without room.

        No block is taken from the prefix cache: all are filled anew.
        """
        num_tokens = sequence.input_tokens
        if not self.kv.allocate_prompt(sequence, num_tokens):
            if sequence.num_stored_tokens:  # the part that came back from CPU memory
                self.kv.release(sequence)
            return False
        sequence.num_computed_tokens = num_tokens
        sequence.is_decode_subrequest = True
        self._holds_while_waiting = True
        return True

    def release_reservation(self, sequence: Sequence) -> None:
        """Free the blocks reserved for a prompt that will not arrive."""
        self.kv.release(sequence)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.running or sequence in self.waiting:
            self._leave(sequence)
        self.kv.release(sequence)
        self._context.end_and_report(sequence, outcome, at)
        if self.waiting and not self.num_running:
            self._plan(at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._admits = pause_state is PauseState.NONE
        self._composes = pause_state is not PauseState.EVERYTHING
        self._plan_after_step(at)

    def preempt_all(self, at: Micros) -> None:
        self.dissolve_cohort()
        self.preempted = []
        while self.explicit:
            self.preempt(self.explicit.pop())
        self._context.counters.num_preemptions += len(self.preempted)
        self._context.events.extend(Preempted(at, sequence) for sequence in self.preempted)
        self._plan_after_step(at)

    def _plan_after_step(self, at: Micros) -> None:
        """Plan a step for what there is to do now, at the end of the one under way."""
        has_work = self.num_running > 0 or (self._admits and bool(self.waiting))
        if self._composes and has_work and not self._planned:
            self._planned = True
            ends_at = self._context.steps.end(self.next_step - 1) if self.next_step else 0
            self._context.queue.push(max(at, ends_at), EventKind.STEP)

    def schedule(self, at: Micros) -> bool:
        self.admitted, self.preempted, self._granted = [], [], {}
        if not self._admits and not self.num_running:
            return False
        self._budget = self._config.max_num_batched_tokens
        self._order_waiting()  # the last of the queue may lose its blocks below
        num_decodes, context = self._grant_cohort() if self.cohort.members else (0, 0)
        if self.explicit:
            self._grant_explicit()
        tokens = [self._advance(sequence, num_tokens) for sequence, num_tokens in self._granted.items()]
        if self.waiting and self._admits and not self.preempted and self.may_admit():
            self._admit_waiting(tokens)
        if self.admitted or self.preempted:
            self._report_composition(at)
            self.explicit += self.admitted
        self.in_flight.append((num_decodes, context, tokens, NO_NEWCOMERS))
        self.next_step += 1
        return True

    def next_tokens(self, sequence: Sequence) -> int:
        """Return a chunk of the prompt or one token; 0 at the end of the context window."""
        computed = sequence.num_computed_tokens
        remaining = sequence.input_tokens - computed
        if remaining > 0:
            return self._chunk(remaining, computed)
        return 1 if sequence.output_tokens and computed + 1 < self._limit else 0

    def _chunk(self, remaining: int, context: int) -> int:
        """Return a prompt's next chunk under the long-prefill threshold, the budget and max_model_len."""
        threshold = self._config.long_prefill_token_threshold
        if 0 < threshold < remaining:
            remaining = threshold
        return max(min(remaining, self._budget, self._limit - 1 - context), 0)

    def _can_grant_cohort_first(self, num_blocks: int) -> bool:
        if num_blocks and not self._is_cohort_admitted_first():
            # Whether a block is named before or after another of the same content is reused makes a difference.
            return False
        if num_blocks > self._free.num_free and self._holds_while_waiting:
            return False  # waiting sequences may lose blocks first
        return super()._can_grant_cohort_first(num_blocks)

    def choose_victim(self) -> int:
        return self._choose_victim(self.explicit)

    def preempt(self, victim: Sequence) -> None:
        """Send a victim to the front of the queue with nothing computed."""
        self.kv.evict(victim)
        victim.restart()
        self.waiting.appendleft(victim)
        self.preempted.append(victim)

    def _advance(self, sequence: Sequence, num_tokens: int) -> ScheduledTokens:
        """Count tokens of a running sequence as computed."""
        context, prompt_tokens = sequence.num_computed_tokens, sequence.input_tokens
        sequence.num_computed_tokens = context + num_tokens
        return ScheduledTokens(sequence, num_tokens, context, prompt_tokens, context + num_tokens >= prompt_tokens)

    def _admit_waiting(self, tokens: list[ScheduledTokens]) -> None:
        passed_over: list[Sequence] = []
        self._admit(tokens, passed_over)
        self.waiting.extendleft(reversed(passed_over))

    def _admit(self, tokens: list[ScheduledTokens], passed_over: list[Sequence]) -> None:
        """Admit from the head of the queue until the batch is full, the budget is spent or blocks run out.

        A sequence whose prompt has come computed from elsewhere, and holds blocks since, decodes at once. When it has
        lost its blocks, it is admitted with the first token of its prompt. Nothing of it is looked up in the cache.
        Sequences that wait beside the queue leave it for `passed_over`.
        """
        waiting, kv, num_running = self.waiting, self.kv, self.num_running
        while waiting and self._budget > 0 and num_running < self._config.max_num_seqs:
            if self._asks_admission and not self._has_next(passed_over):
                return
            sequence = waiting[0]
            if sequence.is_decode_subrequest:
                if not self._begin_decoding(sequence, tokens):
                    if num_running == 0 and self._evict_for(sequence):
                        continue
                    return
            else:
                cached = kv.cached_prefix(sequence)
                start, prompt_tokens = len(cached) * self._block_size, sequence.input_tokens
                num_tokens = self._chunk(prompt_tokens - start, start)
                if not kv.allocate_prompt(sequence, num_tokens, cached):
                    if num_running == 0 and (self._evict_waiting(sequence) or self._evict_claimed(sequence)):
                        continue
                    if not self.explicit and not self.admitted:
                        self._note_blocked(sequence, len(cached))
                    return
                self._budget -= num_tokens
                sequence.blocks_aligned = num_tokens > 0 or start == 0
                sequence.num_computed_tokens = start + num_tokens
                if sequence.num_preemptions == 0:
                    sequence.num_cached_tokens = start
                # To BLIS's latency models a newcomer has no context; one found whole in the cache computes nothing.
                context = 0 if num_tokens else prompt_tokens
                samples = start + num_tokens >= prompt_tokens
                tokens.append(ScheduledTokens(sequence, num_tokens, context, prompt_tokens, samples))
            waiting.popleft()
            num_running += 1
            self._num_admissions += 1
            sequence.running, sequence.running_number = True, self._num_admissions
            self.admitted.append(sequence)

    def _has_next(self, passed_over: list[Sequence]) -> bool:
        """Whether the head of the queue may begin, once those that wait beside the queue have left it."""
        waiting = self.waiting
        while waiting:
            admission = self.admission(waiting[0])
            if admission is not Admission.LATER:
                return admission is Admission.NOW
            passed_over.append(waiting.popleft())
        return False

    def _begin_decoding(self, sequence: Sequence, tokens: list[ScheduledTokens]) -> bool:
        """Schedule the first token of a sequence whose prompt has come computed; False without a block for it."""
        if not self.kv.allocate(sequence, 1):
            return False
        self._budget -= 1
        sequence.blocks_aligned = True
        tokens.append(self._advance(sequence, 1))
        return True

    def _evict_for(self, sequence: Sequence) -> bool:
        """Take blocks of another waiting sequence, or those of this one where it fills the cache. False without any."""
        return self._evict_waiting(sequence) or self._evict_filling(sequence)

    def admission(self, sequence: Sequence) -> Admission:
        """Whether a waiting sequence may begin. Only asked by subclasses that set `_asks_admission`."""
        return Admission.NOW

    def takes_reservation(self, sequence: Sequence) -> bool:
        if self.num_running != 1 or not self._holds_while_waiting:
            return False
        num_admissions, num_waiting = self._num_admissions, len(self.waiting)
        # Nothing else has been admitted since it last lost its own blocks, and so it would come as far as this again
        # and again.
        repeats = self._alone == (sequence, num_admissions - 1, num_waiting)
        if repeats and self._evict_waiting(sequence):
            return True
        self._alone = (sequence, num_admissions, num_waiting)
        return False

    def _evict_waiting(self, candidate: Sequence) -> bool:
        """Take the blocks of the last waiting sequence that holds any. False when only `candidate` holds blocks.

        Without this the engine would spin for ever where nothing runs that could free a block for `candidate`.
        """
        if not self._holds_while_waiting:
            return False
        holders = (each for each in reversed(self.waiting) if each.num_stored_tokens and each is not candidate)
        victim = next(holders, None)
        if victim is None:
            return False
        self._evict_reservation(victim)
        return True

    def _evict_filling(self, sequence: Sequence) -> bool:
        """Take the blocks of a transferred prompt that fills the whole KV cache, so that it is computed here.

        A transferred prompt needs a slot for the token that follows, which a prompt computed here does not. False when
        the cache has room for that token.
        """
        if -(-(sequence.num_stored_tokens + 1) // self._block_size) <= self._config.total_kv_blocks:
            return False
        self._evict_reservation(sequence)
        return True

    def _evict_claimed(self, sequence: Sequence) -> bool:
        """Take the blocks that a waiting sequence claimed when they came back from CPU memory. False without any."""
        if not sequence.num_stored_tokens:
            return False
        self._evict_reservation(sequence)
        return True

    def _evict_reservation(self, victim: Sequence) -> None:
        self.kv.evict(victim)
        victim.restart()
        self.preempted.append(victim)
        self._context.counters.num_reservations_evicted += 1

    def _report_composition(self, at: Micros) -> None:
        engine_context = self._context
        engine_context.counters.num_preemptions += len(self.preempted)
        engine_context.events.extend(Preempted(at, sequence) for sequence in self.preempted)
        for sequence in self.admitted:
            sequence.scheduled_at = at
            if engine_context.reports_admissions:
                engine_context.events.append(Scheduled(at, sequence))

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        self._context.last_shape = shape = shape_of(step, 0)
        return at + (self._context.latency.step_time(shape) or 1)

    @property
    def takes_only_empty_steps(self) -> bool:
        return not self.num_running and bool(self.waiting) and self.is_blocked()

    def repeat_empty_step(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
        # BLIS takes steps, most of 1 us, also while transfers hold the blocks that a waiting prompt needs.
        engine_context = self._context
        if not self.takes_only_empty_steps or (self._reports_steps and not engine_context.allows_multi_step):
            return at, ends_at
        most = min(
            (last - ends_at) // (ends_at - at) + 1, MAX_REPEATED_STEPS if self._reports_steps else MAX_STEPS_AT_ONCE
        )
        first = self.next_step - 1
        engine_context.steps.repeat_last(most)
        if self._reports_steps:
            ends = [engine_context.steps.end(index) for index in range(first, first + most)]
            engine_context.events.append(StepsDone(ends, first, []))
        self.next_step += most
        rested_us = most * (ends_at - at)
        return at + rested_us, ends_at + rested_us

    def give_first_tokens(self, newcomers: list[Sequence], step_index: int, at: Micros) -> list[Sequence]:
        for sequence in newcomers:
            sequence.num_in_flight_tokens = 0
            sequence.first_token_step, sequence.first_token_at = step_index, at
        return newcomers

    def process(
        self, tokens: ScheduledTokens, step_index: int, at: Micros, emitted: list[Sequence], finished: list[Event]
    ) -> None:
        sequence = tokens.sequence
        if sequence.span is not None:
            self.complete(sequence, at, finished)
            return
        if not tokens.samples:
            return
        request, computed = sequence.request, sequence.num_computed_tokens
        decodes = tokens.num_tokens > 0 and tokens.context_tokens >= request.input_tokens
        if decodes:
            sequence.add_token_step(step_index)
        if sequence.first_token_step is None:
            # At once with the second token if the prompt was computed elsewhere.
            sequence.first_token_step, sequence.first_token_at = step_index, at
        if decodes or request.output_tokens > 0:
            emitted.append(sequence)
        if computed >= request.input_tokens + max(request.output_tokens, 1) - 1 or computed >= self._limit - 1:
            self.complete(sequence, at, finished)

    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        self._leave(sequence)
        request, computed, engine_context = sequence.request, sequence.num_computed_tokens, self._context
        is_whole = computed >= request.input_tokens + max(request.output_tokens, 1) - 1
        outcome = Outcome.COMPLETED if is_whole else Outcome.LENGTH_CAPPED
        # BLIS stores the last token too, which vLLM does not: it can take a block, or fail to.
        wants_block = request.output_tokens > 0 and computed < request.input_tokens + request.output_tokens
        if is_whole and wants_block and not self.kv.allocate_token(sequence):
            engine_context.counters.num_kv_allocation_failures += 1
        self.kv.release(sequence)
        # A request is credited with what it produced, at most with what it was to produce.
        sequence.num_output_tokens = min(computed - request.input_tokens + 1, request.output_tokens)
        engine_context.end(sequence, outcome)
        engine_context.counters.output_tokens += sequence.num_output_tokens
        finished.append(Finished(at, sequence, outcome))

    def _leave(self, sequence: Sequence) -> None:
        """Forget a sequence that runs or waits."""
        if sequence.span is not None:
            self.leave_cohort(sequence)
        elif sequence.running:
            self.explicit.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.running = False

    def join_cohort(self) -> None:
        counting = self._counting
        if counting is not None:
            self.explicit = [
                sequence
                for sequence in self.explicit
                if sequence.first_token_step is None
                or counting.will_share(sequence)
                or not self._join(sequence, sequence.num_computed_tokens - sequence.input_tokens + 1)
            ]

    def leave_cohort(self, sequence: Sequence) -> None:
        span, counting = sequence.span, self._counting
        assert span is not None
        assert counting is not None
        num_steps = self.next_step - span.first_step
        self.cohort.leave(sequence)
        sequence.num_computed_tokens += num_steps
        counting.grow(sequence, num_steps)
        sequence.add_token_steps(span.first_step, num_steps)

    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        assert self._counting is not None
        return self._counting.blocks_lacking(sequence, num_tokens)

    def stays_without_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether blocks are too few even if all found ones are in use, for found ones may get fewer meanwhile."""
        num_tokens, size = sequence.input_tokens, self._block_size
        if self._chunk(num_tokens, 0) == num_tokens:
            return -(-num_tokens // size) - num_hits > self._free.num_free
        start = num_hits * size
        return -(-self._chunk(num_tokens - start, start) // size) > self._free.num_free


class TieredBlisScheduler(BlisScheduler):
    """`BlisScheduler` with a CPU tier, without a cohort: the tier depends on the content of every block."""

    __slots__ = ("_tiered",)

    def __init__(self, context: EngineContext, reports_steps: bool, tier: CpuTierConfig) -> None:
        config = context.config
        self._tiered = OFFLOAD_POLICIES[tier.policy](config.total_kv_blocks, config.block_size_tokens, tier)
        super().__init__(context, reports_steps, has_cohort=False, kv=self._tiered)
        self._holds_while_waiting = True

    def schedule(self, at: Micros) -> bool:
        self._tiered.now = at
        return super().schedule(at)

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at) + self._tiered.take_transfer_us()
        self._tiered.step_executed(self.explicit)
        return ends_at


# BLIS's scheduler with LoRA adapters, which are loaded one at a time for the head of the queue (sim/lora).

_SLOWDOWN_BY_RANK = {8: 0.02, 16: 0.035, 32: 0.06}
"""Share by which each adapter of a batch slows the step, by the largest rank in it."""


def slowdown(adapters: set[str], ranks: dict[str, int]) -> float:
    """Return the factor by which the adapters of a batch lengthen its step."""
    if not adapters:
        return 1.0
    largest = max(ranks.get(each, 0) for each in adapters)
    tier = min(_SLOWDOWN_BY_RANK, key=lambda rank: (abs(rank - largest), rank))
    return 1.0 + _SLOWDOWN_BY_RANK[tier] * len(adapters)


class AdapterBlisScheduler(BlisScheduler):
    """`BlisScheduler` whose queue waits while the adapter of its head is not on the GPU. Has no cohort."""

    __slots__ = ("_loader", "_ranks", "_users")

    def __init__(self, context: EngineContext, reports_steps: bool, lora: LoraSettings) -> None:
        super().__init__(context, reports_steps, has_cohort=False)
        self._asks_admission = True
        self._loader = AdapterLoader(lora, context.counters.adapters)
        self._ranks = {each.name: each.rank for each in lora.adapters}
        self._users: set[str] = set()
        """Ids of the requests that have begun and not ended."""

    def schedule(self, at: Micros) -> bool:
        loader = self._loader
        loader.advance(at)
        if self.waiting:
            self._order_waiting()
            loader.request(self.waiting[0].request.adapter, at)
        if not self.num_running and self.waiting and self.admission(self.waiting[0]) is not Admission.NOW:
            self.admitted, self.preempted, self._granted = [], [], {}
            if loader.ready_at is not None and not self._planned:
                self._planned = True
                self._context.queue.push(loader.ready_at, EventKind.STEP)
            return False
        return super().schedule(at)

    def admission(self, sequence: Sequence) -> Admission:
        return Admission.NOW if self._loader.has(sequence.request.adapter) else Admission.BLOCKED

    def _admit_waiting(self, tokens: list[ScheduledTokens]) -> None:
        super()._admit_waiting(tokens)
        for sequence in self.admitted:
            if sequence.request.id not in self._users:
                self._users.add(sequence.request.id)
                self._loader.begin_use(sequence.request.adapter)

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at)
        computing = {each.sequence.request.adapter for each in step[2] if each.num_tokens} - {""}
        return at + max(1, int((ends_at - at) * slowdown(computing, self._ranks)))

    def complete(self, sequence: Sequence, at: Micros, finished: list[Event]) -> None:
        super().complete(sequence, at, finished)
        self._end_use(sequence)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._end_use(sequence)
        super().remove(sequence, outcome, at)

    def _end_use(self, sequence: Sequence) -> None:
        if sequence.request.id in self._users:
            self._users.remove(sequence.request.id)
            self._loader.end_use(sequence.request.adapter)


# BLIS's scheduler with CPU memory and devices behind the KV cache: requests wait for blocks that come from devices.
#
# Facts: sim/kv/offload_*.go. A request whose prompt goes on where only a device has it stays in the queue, and those
# behind it may begin.


class ChainedBlisScheduler(BlisScheduler):
    """`BlisScheduler` without a cohort, for the content of every block matters."""

    __slots__ = ("_behind", "_fetching", "_now", "_settled")

    def __init__(self, context: EngineContext, reports_steps: bool, chain: OffloadChain) -> None:
        config = context.config
        self._behind = ChainedKVCache(config.total_kv_blocks, config.block_size_tokens, chain)
        super().__init__(context, reports_steps, has_cohort=False, kv=self._behind)
        self._asks_admission = self._holds_while_waiting = True
        self._now: Micros = 0
        self._fetching: dict[str, list[object]] = {}
        """Blocks on their way from devices for each waiting request, by its id."""
        self._settled: set[str] = set()
        """Waiting requests that fetch nothing more."""

    def schedule(self, at: Micros) -> bool:
        self._now = self._behind.now = at
        self._behind.chained.advance(at)
        return super().schedule(at)

    def admission(self, sequence: Sequence) -> Admission:
        request_id, chained = sequence.request.id, self._behind.chained
        if request_id in self._settled or sequence.is_decode_subrequest or not chained.chain.devices:
            return Admission.NOW
        fetched = self._fetching.get(request_id)
        if fetched is not None:
            if any(map(chained.is_arriving, fetched)):
                return Admission.LATER
            return self._settle(request_id)
        wanted, is_pending = self._wanted(sequence)
        if not wanted:
            return Admission.LATER if is_pending else Admission.NOW
        if not chained.look_up(wanted):
            return Admission.LATER
        if not chained.promote(wanted, self._now):
            return self._settle(request_id)
        self._fetching[request_id] = wanted
        return Admission.LATER

    def _settle(self, request_id: str) -> Admission:
        self._fetching.pop(request_id, None)
        self._settled.add(request_id)
        return Admission.NOW

    def _wanted(self, sequence: Sequence) -> tuple[list[object], bool]:
        """Return the blocks of the prompt to fetch from devices, and whether others are on their way already."""
        chained, index, blocks = self._behind.chained, self._behind.index, sequence.request.blocks
        wanted: list[object] = []
        is_pending = False
        for place in range(sequence.input_tokens // self._block_size):
            block = blocks.identity(place)
            if index.block_of(block) is not None or block in chained:
                continue
            if chained.is_arriving(block):
                is_pending = True
            elif chained.place_of(block) is not None:
                wanted.append(block)
            else:
                break
        return wanted, is_pending

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at)
        self._behind.step_executed(self.explicit)
        for sequence in self.admitted:
            self._settled.discard(sequence.request.id)
        return ends_at

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        self._fetching.pop(sequence.request.id, None)
        self._settled.discard(sequence.request.id)
        super().remove(sequence, outcome, at)

    def repeat_empty_step(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
        next_at = self._behind.chained.next_at
        if self.num_running or not self.waiting or self._reports_steps or not self._fetching or next_at is None:
            return super().repeat_empty_step(at, ends_at, last)
        step_us = ends_at - at
        # Up to the last step that begins before a transfer ends, and by `last`.
        most = min(-(-(next_at - ends_at) // step_us), (last - ends_at) // step_us + 1)
        if most <= 0:
            return at, ends_at
        self._context.steps.repeat_last(most)
        self.next_step += most
        return at + most * step_us, ends_at + most * step_us
