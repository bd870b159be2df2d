"""Composition of the next step: the tokens of each sequence, by the rules of vLLM 0.33's scheduler.

There is no prefill and no decode: each sequence has tokens it has and tokens it has computed, and every step lets it
catch up. Facts and order of rules: vllm/v1/core/sched/scheduler.py, `schedule`.
"""

from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Preempted, Scheduled
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.kv_cache.mamba_manager import new_state_split
from blis_sim.engine.kv_cache.slot_caches import new_cohort_cache, new_slot_cache
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache
from blis_sim.engine.pipeline import Pipeline
from blis_sim.engine.scheduler.batch import BatchScheduler
from blis_sim.engine.scheduler.cohort import can_have_cohort, hold_none, take_none
from blis_sim.engine.scheduler.policies import least_urgent_latest_due
from blis_sim.engine.scheduler.scheduled_step import (
    NO_DISPLACED,
    NO_NEWCOMERS,
    Admission,
    ScheduledTokens,
    num_external_tokens,
)
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class VllmComposition(BatchScheduler):
    """Composes steps. With asynchronous scheduling the next step is composed while one executes.

    Without a cohort every sequence is granted its tokens one by one; results are the same.
    """

    __slots__ = (
        *("_counting", "_decode_interval", "_deferred", "_defers", "_has_tier", "_is_async", "_is_capacity_bound"),
        *("_last_prefill_step", "_num_executed_steps", "_pipeline", "_split", "_threshold", "kv", "num_compositions"),
        *("prepares", "waiting_with_blocks"),
    )

    def __init__(
        self, context: EngineContext, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        config = context.config
        self._counting = counting = new_cohort_cache(config) if has_cohort and can_have_cohort(config) else None
        self.kv: SlotCache = counting or kv or new_slot_cache(config, context.cache_changes)
        free, take, hold = (
            (None, take_none, hold_none) if counting is None else (counting.free, counting.take, counting.hold_prompt)
        )
        super().__init__(
            context, reports_steps, config.max_concurrent_batches, config.limit_tokens, self.kv, free, take, hold
        )
        self._names = counting if isinstance(counting, CountingKVCache) else None
        self._pipeline = None if config.pipeline is None else Pipeline(config.pipeline)
        self.num_compositions = 0
        """Number of times that a step was to be composed, with several pipeline stages."""
        self._decode_interval = config.num_stages if config.pipeline is not None and config.async_scheduling else 0
        """Compositions from one decode of a sequence to the next at the earliest; 0 for no limit."""
        self._deferred: set[Sequence] = set()
        """Waiting sequences that a `schedule` passed over."""
        self._is_async = config.async_scheduling
        self._newcomer_placeholders = int(config.async_scheduling)
        self._watermark_blocks = self.kv.watermark_blocks
        self._resumes = self._by_priority  # those after it are more urgent and may fit
        self._threshold_when_alone = False
        self._drafter_rows = config.speculation.rows_per_request if config.speculation else 0
        self._threshold = 0
        self._split = new_state_split(config)
        self._has_tier = False
        """Whether KV blocks may have to be loaded for a waiting sequence."""
        self._defers = False
        """Whether the latest step only decodes."""
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._is_capacity_bound = False
        self.prepares = False
        """Whether `prepare` has anything to do."""
        self.waiting_with_blocks: set[Sequence] = set()
        """Waiting sequences that lost their places and hold their KV blocks."""

    @property
    def num_deferred(self) -> int:
        return len(self._deferred)

    def join_cohort(self) -> None:
        if self._counting is not None:
            self.explicit = self._not_joining(self.explicit, 0)

    def _not_joining(self, sequences: list[Sequence], num_sampling: int) -> list[Sequence]:
        """Let those of `sequences` that only decode join the cohort. Returns the others.

        `num_sampling` counts tokens that are in flight without placeholders.
        """
        counting = self._counting
        assert counting is not None
        return [
            sequence
            for sequence in sequences
            if sequence.is_prefilling
            or sequence.num_stale_tokens
            or self._encoder.has_references(sequence)
            or (sequence.num_shareable_blocks and self._names is None and counting.will_share(sequence))
            or not self._join(sequence, sequence.num_output_tokens + sequence.num_placeholders + num_sampling)
        ]

    def materialize(self, sequence: Sequence) -> None:
        for step in self.settle(sequence):
            self._late.setdefault(step, []).append(ScheduledTokens(sequence, 1, 0, 0, samples=True))
            self._must_update = True

    def settle(self, sequence: Sequence, is_for_good: bool = False) -> range:
        """Record the progress that follows from the decode span of a member that leaves. Returns its steps in flight.

        A member that leaves for good gives its blocks back.
        """
        span, counting, num_processed = sequence.span, self._counting, self.next_step - len(self.in_flight)
        assert span is not None
        assert counting is not None
        first, end = span.first_step, span.last_step + 1
        composed = end if span.has_known_end and end < self.next_step else self.next_step
        self.cohort.leave(sequence)
        num_in_flight = composed - first
        if num_processed > first:
            num_tokens = (num_processed if num_processed < end else end) - first
            sequence.num_output_tokens += num_tokens
            sequence.add_token_steps(first, num_tokens)
            num_in_flight = composed - num_processed
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + composed - first
        sequence.num_in_flight_tokens = num_unknown = sequence.num_in_flight_tokens + num_in_flight
        if self._is_async:
            sequence.num_placeholders += num_in_flight
        if num_unknown >= self._depth:
            num_unknown = self._depth - 1
        if is_for_good:
            counting.release_grown(sequence, computed, computed - num_unknown)
        else:
            counting.grow_to(sequence, computed, computed - num_unknown)
        return range(composed - num_in_flight, composed)

    def settle_ended(self, sequence: Sequence) -> None:
        """`settle` for good, where the last token of a member has just been processed. The member does not run any
        more."""
        span, counting = sequence.span, self._counting
        assert span is not None
        assert counting is not None
        first, end = span.first_step, span.last_step + 1
        num_steps = end - first
        sequence.running = False
        sequence.num_output_tokens += num_steps
        if sequence.token_runs:
            sequence.add_token_steps(first, num_steps)
        else:
            sequence.token_runs.append([first, num_steps])
        num_vain = 0 if span.has_known_end else self.next_step - end
        """Steps in flight that compute a token beyond the last one, which stays unknown."""
        self.cohort.leave(sequence)
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + num_steps + num_vain
        counting.release_grown(sequence, computed, computed - num_vain)

    def blocks_lacking(self, sequence: Sequence, num_tokens: int) -> int:
        return self.kv.blocks_for(sequence.num_computed_tokens + num_tokens) - sequence.num_blocks

    def stays_without_blocks(self, sequence: Sequence, num_hits: int) -> bool:
        assert self._counting is not None
        return self._config.reserve_full_prompt and not self._counting.may_fit(sequence, num_hits)

    def schedule(self, at: Micros) -> bool:
        self.admitted, self.preempted, self._granted = [], [], {}
        self.kv.new_step()
        self._encoder.new_step()
        self._budget = self._token_budget - self._drafter_rows
        self._threshold = self._long_prefill_threshold()
        self._had_prefill = False
        displaced = self.prepare(at) if self.prepares else NO_DISPLACED
        self._defers = self._defers_prefills()
        num_decodes, context = self._grant_cohort() if self.cohort.members else (0, 0)
        if self.explicit:
            self._grant_explicit()
        if not self.preempted and self._admits and self.may_admit():
            self._admit_waiting()
        if displaced:
            self.preempted = displaced + self.preempted
        if self.admitted or self.preempted:
            self._report_composition(at)
        is_scheduled = bool(self._granted) or num_decodes > 0
        self._num_executed_steps += is_scheduled
        if self._had_prefill:
            self._last_prefill_step = self._num_executed_steps
        if not is_scheduled:
            return False
        tokens = [self._advance(sequence, num_tokens) for sequence, num_tokens in self._granted.items()]
        if tokens:
            self.cohort.decode_only_from = self.next_step + 1
        self.in_flight.append((num_decodes, context, tokens, NO_NEWCOMERS))
        self.next_step += 1
        if self.admitted:
            self.explicit += (
                self.admitted if self._counting is None else self._not_joining(self.admitted, not self._is_async)
            )
        return True

    def prepare(self, at: Micros) -> list[Sequence]:
        """Change priorities and places before a step is composed. Returns the sequences that lost their places."""
        return NO_DISPLACED

    def resume_first(self, passed_over: list[Sequence], adapters: set[str] | None) -> int:
        """Resume the first waiting sequence, in `waiting_with_blocks`. Returns its tokens; -1 without enough blocks."""
        return -1

    def _long_prefill_threshold(self) -> int:
        """Tokens by which a long prompt is split for the sake of others; 0 where it is alone, and for no limit."""
        config, num_requests = self._config, self.num_running + len(self.waiting)
        threshold = config.long_prefill_token_threshold if num_requests > 1 else 0
        if threshold and config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // num_requests)
        return threshold

    def _defers_prefills(self) -> bool:
        """Whether this step only decodes, because prefills are spaced `prefill_schedule_interval` steps apart."""
        interval = self._config.prefill_schedule_interval
        since = self._num_executed_steps + 1 - self._last_prefill_step
        if interval == 1 or since >= interval or self._is_capacity_bound:
            return False
        return any(not sequence.is_prefilling for sequence in self.explicit)

    def next_tokens(self, sequence: Sequence) -> int:
        computed, placeholders = sequence.num_computed_tokens, sequence.num_placeholders
        if placeholders > 0:
            budget_end = sequence.input_tokens + sequence.max_output_tokens
            if sequence.max_output_tokens and computed + 2 - placeholders >= budget_end:
                return 0  # the steps in flight bring its last token
        if (self._defers and sequence.is_prefilling) or self.num_compositions < sequence.decodes_from:
            return 0
        num_tokens = sequence.input_tokens + sequence.num_output_tokens + sequence.num_drafts + placeholders - computed
        media = sequence.request.media
        if num_tokens == 1 and not media:  # it decodes, with a budget that is not used up
            return 1 if computed + 1 < self._limit else 0
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        num_tokens = min(num_tokens, self._budget, self._limit - computed - 1)
        if self._split is not None:
            num_tokens = self._split_chunk(sequence, computed, num_tokens)
        return self._encoder.clip(sequence, computed, num_tokens) if media else num_tokens

    def choose_victim(self) -> int:
        """Return the index of the last admitted, or by priority of the least urgent, of equals the latest arrival."""
        running = self.explicit
        if self._config.preemption_policy == "gap":
            return least_urgent_latest_due(running)
        if not self._by_priority:
            return len(running) - 1
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrived_at, -i))

    def preempt(self, victim: Sequence) -> None:
        """Send a victim to the front of the queue; it keeps its output and recomputes the rest."""
        self.discard_progress(victim)
        victim.running = False
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        self.preempted.append(victim)

    def discard_progress(self, sequence: Sequence) -> None:
        """Take the KV blocks of a sequence, which computes all its tokens so far anew."""
        self.kv.evict(sequence)
        self._encoder.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_stale_tokens = sequence.num_in_flight_tokens
        sequence.num_placeholders = 0
        sequence.num_drafts = 0

    def _admit_waiting(self) -> None:  # noqa: C901 - one loop over the queue
        waiting, kv, config = self.waiting, self.kv, self._config
        self._order_waiting()
        adapters = self._running_adapters()
        passed_over: list[Sequence] = []
        num_running = self.num_running
        while waiting and self._budget > 0 and num_running < config.max_num_seqs:
            sequence = waiting[0]
            if sequence in self.waiting_with_blocks:
                num_tokens = self.resume_first(passed_over, adapters)
                if num_tokens < 0:
                    break
                num_running += num_tokens > 0
                continue
            admission = self._admission(sequence, adapters)
            if admission is Admission.LATER:
                passed_over.append(waiting.popleft())
                continue
            if admission is Admission.BLOCKED:
                if self.takes_reservation(sequence):
                    continue
                break
            hits = kv.cached_prefix(sequence)
            cached = start = kv.num_found_tokens(hits)
            if sequence.request.external is not None or self._has_tier:
                start = max(cached, self._brought_tokens(sequence))
            num_known = sequence.input_tokens + sequence.num_output_tokens
            if self._defers and start < num_known - 1:
                break
            num_tokens = self._admission_tokens(sequence, start)
            if num_tokens and not (num_tokens := self._encoder.clip(sequence, start, num_tokens)):
                passed_over.append(waiting.popleft())
                continue
            if num_tokens == 0 or not kv.admit(
                sequence, start - cached + num_tokens, hits, config.reserve_full_prompt, num_running > 0
            ):
                if num_tokens and self.takes_reservation(sequence):
                    continue
                self._note_blocked(sequence, len(hits))
                self._encoder.release(sequence)
                break
            kv.count_lookup(sequence, len(hits))
            waiting.popleft()
            num_running += 1
            sequence.num_computed_tokens = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
                sequence.num_external_tokens = start - cached
            self._had_prefill |= start < num_known - 1
            self._grant_newcomer(sequence, num_tokens, adapters)
        waiting.extendleft(reversed(passed_over))
        if passed_over or self._deferred:
            self._deferred.update(passed_over)
            self._deferred.difference_update(self.admitted)
        if not self._defers:
            self._is_capacity_bound = len(waiting) > len(self._deferred)

    def _admission(self, sequence: Sequence, adapters: set[str] | None) -> Admission:
        """Whether a waiting sequence may join a step with `adapters`."""
        # Steps in flight still bring tokens from before its preemption, or its adapter finds no slot.
        is_ready = not sequence.num_stale_tokens and self._finds_slot(sequence.request.adapter, adapters)
        return Admission.NOW if is_ready else Admission.LATER

    def _brought_tokens(self, sequence: Sequence) -> int:
        """Return the tokens of a waiting sequence that were computed elsewhere or before."""
        return num_external_tokens(sequence)

    def _grant_newcomer(self, sequence: Sequence, num_tokens: int, adapters: set[str] | None) -> None:
        self._num_admissions += 1
        sequence.running, sequence.running_number = True, self._num_admissions
        self._granted[sequence] = num_tokens
        self._encoder.take(sequence)
        self._budget -= num_tokens + self._drafter_rows
        self.admitted.append(sequence)
        if adapters is not None:
            adapters.add(sequence.request.adapter)

    def _running_adapters(self) -> set[str] | None:
        """Return the adapters of all running sequences; None without LoRA."""
        if self._config.lora is None:
            return None
        return {sequence.request.adapter for sequence in self.explicit} | {""}

    def _finds_slot(self, adapter: str, adapters: set[str] | None) -> bool:
        """Whether a step with `adapters`, one of which stands for none, can take `adapter`, too."""
        if adapters is None:
            return True
        assert self._config.lora is not None
        return adapter in adapters or len(adapters) <= self._config.lora.max_loras

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """Return the tokens that a newcomer computes after `start` cached ones; 0 when they need a larger budget."""
        num_tokens = sequence.input_tokens + sequence.num_output_tokens - start
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        if num_tokens > self._budget and not self._config.enable_chunked_prefill:
            return 0
        num_tokens = min(num_tokens, self._budget)
        return num_tokens if self._split is None else self._split_chunk(sequence, start, num_tokens)

    def _split_chunk(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens end where recurrent states can be kept."""
        assert self._split is not None
        most = min(self._token_budget, self._config.long_prefill_token_threshold or self._token_budget)
        return self._split.num_tokens(sequence, start, num_tokens, self.kv.boundary_tokens(sequence), most)

    def _advance(self, sequence: Sequence, num_tokens: int) -> ScheduledTokens:
        """Count tokens as computed at once, so that the next step can be composed before this one ends."""
        context = sequence.num_computed_tokens
        num_known = sequence.input_tokens + sequence.num_output_tokens
        sequence.num_computed_tokens = computed = context + num_tokens
        sequence.num_in_flight_tokens += num_tokens
        samples = computed >= num_known + sequence.num_placeholders
        sequence.is_prefilling = not samples
        if samples and self._is_async:
            sequence.num_placeholders += 1
            if self._decode_interval:
                sequence.decodes_from = self.num_compositions + self._decode_interval
        return ScheduledTokens(sequence, num_tokens, context, num_known, samples)

    def _report_composition(self, at: Micros) -> None:
        engine_context = self._context
        if self.preempted:
            engine_context.counters.num_preemptions += len(self.preempted)
            engine_context.events.extend(Preempted(at, sequence) for sequence in self.preempted)
        for sequence in self.admitted:
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
            if engine_context.reports_admissions:
                engine_context.events.append(Scheduled(at, sequence))
