"""Steps as BLIS takes them: all of a step is decided and applied when it begins, and reported when it ends.

The rules and their order are BLIS's (sim/batch_formation.go, sim/simulator.go), which follow vLLM's V1 scheduler:
continuous batching with chunked prefill under one token budget, and preemption by recomputation when blocks run out.
"""

from blis_sim.engine.context import EngineContext
from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepsDone
from blis_sim.engine.kv_cache.blis_cache import CountingPromptCache, KVCache, PromptCache
from blis_sim.engine.kv_cache.tiered_cache import OFFLOAD_POLICIES
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.batch import BatchScheduler
from blis_sim.engine.scheduler.cohort import hold_none, take_none
from blis_sim.engine.scheduler.cohort_steps import MAX_REPEATED_STEPS, MAX_STEPS_AT_ONCE
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import VICTIMS
from blis_sim.engine.scheduler.scheduled_step import NO_NEWCOMERS, ScheduledStep, ScheduledTokens, shape_of
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

_NO_LIMIT = 1 << 62


class BlisScheduler(BatchScheduler):
    """One step after the other, each composed when the one before ends."""

    __slots__ = ("_alone", "_choose_victim", "_counting", "_holds_while_waiting", "kv", "num_deferred")

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: KVCache | None = None
    ) -> None:
        """`kv` is a cache other than the usual one, without a cohort."""
        config = context.config
        size = config.total_kv_blocks, config.block_size_tokens
        self._counting = counting = CountingPromptCache(*size) if has_cohort and kv is None else None
        self.kv: PromptCache = counting or kv or KVCache(*size)
        free, take, pause_state = (
            (None, take_none, hold_none) if counting is None else (counting.free, counting.take, counting.hold_prompt)
        )
        super().__init__(context, reports_steps, 1, config.max_model_len or _NO_LIMIT, self.kv, free, take, pause_state)
        self._ends_early = self._counts_taken_blocks = True
        self._choose_victim = VICTIMS[config.preemption_policy]
        self.num_deferred = 0
        self._holds_while_waiting = False
        """Whether waiting sequences may hold blocks: prompts that another instance has computed."""
        self._alone: tuple[Sequence | None, int, int] = (None, 0, 0)
        """The latest that found no block while nothing else ran, all admissions until then, and the queue's length."""

    def reserve(self, sequence: Sequence) -> bool:
        """Allocate blocks for a whole prompt that another instance computes; False, unchanged, without room.

        No block is taken from the prefix cache: all are filled anew.
        """
        num_tokens = sequence.input_tokens
        if not self.kv.allocate_prompt(sequence, num_tokens):
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
        self.materialize_all()
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
        if tokens:
            self.cohort.decode_only_from = self.next_step + 1
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
        """Admit from the head of the queue until the batch is full, the budget is spent or blocks run out.

        A sequence whose prompt has come computed from elsewhere, and holds blocks since, decodes at once. When it has
        lost its blocks, it is admitted with the first token of its prompt and nothing of it is looked up in the cache.
        """
        waiting, kv, num_running = self.waiting, self.kv, self.num_running
        while waiting and self._budget > 0 and num_running < self._config.max_num_seqs:
            sequence = waiting[0]
            if sequence.is_decode_subrequest:
                if not kv.allocate(sequence, 1):
                    if num_running == 0 and (self._evict_waiting(sequence) or self._evict_filling(sequence)):
                        continue
                    return
                self._budget -= 1
                sequence.blocks_aligned = True
                tokens.append(self._advance(sequence, 1))
            else:
                cached = kv.cached_prefix(sequence)
                start, prompt_tokens = len(cached) * self._block_size, sequence.input_tokens
                num_tokens = self._chunk(prompt_tokens - start, start)
                if not kv.allocate_prompt(sequence, num_tokens, cached):
                    if num_running == 0 and self._evict_waiting(sequence):
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
        holders = (each for each in reversed(self.waiting) if each.num_computed_tokens and each is not candidate)
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

    def rest(self, at: Micros, ends_at: Micros, last: Micros) -> tuple[Micros, Micros]:
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
            self.materialize(sequence)
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

    def materialize(self, sequence: Sequence) -> None:
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

    def schedule(self, at: Micros) -> bool:
        self._tiered.now = at
        return super().schedule(at)

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at) + self._tiered.take_transfer_us()
        self._tiered.step_executed(self.explicit)
        return ends_at
