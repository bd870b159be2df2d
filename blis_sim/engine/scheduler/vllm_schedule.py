"""Which sequence computes how many tokens in the next step, by the rules of vLLM 0.33's scheduler.

There is no prefill and no decode: each sequence has tokens it has and tokens it has computed, and every step lets it
catch up. Facts and order of rules: vllm/v1/core/sched/scheduler.py, `schedule`.
"""

from blis_sim.engine.events import Preempted, Scheduled
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.slots import SlotCache
from blis_sim.engine.scheduler.cohort import running_number
from blis_sim.engine.scheduler.multi_step import NO_NEWCOMERS, ScheduledTokens
from blis_sim.engine.scheduler.vllm_cohort import VllmCohort
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros


class VllmComposition(VllmCohort):
    """Composes steps. With asynchronous scheduling the next step is composed while one executes.

    Without a cohort every sequence is granted its tokens one by one; results are the same.
    """

    def __init__(
        self, instance: Instance, reports_steps: bool = True, has_cohort: bool = True, kv: SlotCache | None = None
    ) -> None:
        super().__init__(instance, reports_steps, has_cohort, kv)
        config = self._config
        self.admitted: list[Sequence] = []
        """Sequences that joined the batch in the latest `schedule`."""
        self.num_deferred = 0
        """Waiting sequences that the latest `schedule` passed over because of their adapter."""
        self._by_priority = config.preemption_policy == "priority"
        self._drafter_rows = config.speculation.rows_per_request if config.speculation else 0
        """What a drafter takes out of the budget for each granted sequence."""
        self._budget = 0
        self._threshold = 0
        self._granted: dict[Sequence, int] = {}
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._had_prefill = False
        self._is_capacity_bound = False

    def schedule(self, at: Micros) -> bool:
        self.admitted, self.preempted, self._granted = [], [], {}
        config = self._config
        self._budget = config.max_num_batched_tokens - self._drafter_rows
        # A long prompt is split for the sake of others, so not when it is alone.
        alone = self.num_running + len(self.waiting) <= 1
        self._threshold = 0 if alone else config.long_prefill_token_threshold
        self._had_prefill = False
        defers = self._defers_prefills()
        num_decodes, context = self._grant_cohort() if self.cohort.members else (0, 0)
        if self.explicit:
            self._grant_explicit(defers)
        if not self.preempted and self._admits:
            self._admit_waiting(defers)
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
            self._latest_explicit = self.next_step
        self.flight.append((num_decodes, context, tokens, NO_NEWCOMERS))
        self.next_step += 1
        if self.admitted:
            self.explicit += (
                self.admitted if self._counting is None else self._not_joining(self.admitted, not self._is_async)
            )
        return True

    def _defers_prefills(self) -> bool:
        """Whether this step only decodes, because prefills are spaced `prefill_schedule_interval` steps apart."""
        interval = self._config.prefill_schedule_interval
        since = self._num_executed_steps + 1 - self._last_prefill_step
        if interval == 1 or since >= interval or self._is_capacity_bound:
            return False
        return any(not sequence.is_prefilling for sequence in self.explicit)

    def _grant_cohort(self) -> tuple[int, int]:
        """Grant the cohort its tokens. Returns how many of it decode and the sum of their contexts.

        Without enough blocks the last admitted lose theirs, after all that is free has been given out, as when
        sequences are granted tokens one by one.
        """
        cohort, step = self.cohort, self.next_step
        num_blocks = cohort.needs[step % self._block_size]
        if not self._cohort_goes_first(num_blocks):
            self.materialize_all()
            return 0, 0
        while True:
            num_taken = min(num_blocks, self._free.num_free)
            self._take_blocks(num_taken)
            num_blocks -= num_taken
            if not num_blocks:
                break
            victim = self.explicit.pop() if self.explicit else max(cohort.members, key=running_number)
            if victim.span is not None:
                num_blocks -= cohort.needs_block(victim, step)
                self.materialize(victim)
            self._preempt(victim)
        num_decodes, context = cohort.num_decodes, cohort.offset + cohort.num_decodes * step
        self._budget -= num_decodes
        if step in cohort.ends:
            cohort.composed(step)
        return num_decodes, context

    def _cohort_goes_first(self, num_blocks: int) -> bool:
        """Whether granting tokens to the cohort before all others is the same as granting in order of admission."""
        if self.cohort.num_decodes > self._budget:
            return False
        explicit, num_free = self.explicit, self._free.num_free
        if not self._by_priority and (not explicit or explicit[0].running_number > self.cohort.latest_number):
            return True
        counting = self._counting
        assert counting is not None
        num_tokens = self.cohort.num_decodes
        for sequence in explicit:  # is there enough for all?
            wanted = max(0, self._next_tokens(sequence, defers=False))
            num_tokens += wanted
            num_blocks += max(0, counting.blocks_for(sequence.num_computed_tokens + wanted) - sequence.num_blocks)
        return num_tokens <= self._budget and num_blocks <= num_free

    def _grant_explicit(self, defers: bool) -> None:
        index = 0
        running = self.explicit
        while index < len(running) and self._budget > 0:
            sequence = running[index]
            num_tokens = self._next_tokens(sequence, defers)
            if num_tokens > 0:
                prefilling = sequence.is_prefilling
                if not self.kv.allocate(sequence, num_tokens):
                    index = self._preempt_for(sequence, num_tokens, index)
                    if not sequence.running:
                        if self._by_priority:
                            continue  # those after it are more urgent and may fit now
                        return
                self._granted[sequence] = num_tokens
                self._budget -= num_tokens + self._drafter_rows
                self._had_prefill |= prefilling
            index += 1

    def _next_tokens(self, sequence: Sequence, defers: bool) -> int:
        computed, placeholders = sequence.num_computed_tokens, sequence.num_placeholders
        if placeholders > 0:
            budget_end = sequence.request.input_tokens + sequence.max_output_tokens
            if sequence.max_output_tokens and computed + 2 - placeholders >= budget_end:
                return 0  # the steps in flight bring its last token
        if defers and sequence.is_prefilling:
            return 0
        num_tokens = (
            sequence.request.input_tokens + sequence.num_output_tokens + sequence.num_drafts + placeholders - computed
        )
        if num_tokens == 1:  # it decodes, with a budget that is not used up
            return 1 if computed + 1 < self._limit else 0
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        return min(num_tokens, self._budget, self._limit - computed - 1)

    def _preempt_for(self, sequence: Sequence, num_tokens: int, index: int) -> int:
        """Evict others until there are slots for `sequence`, itself last. Returns its index afterwards."""
        while True:
            victim_index = self._victim()
            victim = self.explicit.pop(victim_index)
            if victim_index < index:
                index -= 1
            if victim in self._granted:
                self._budget += self._granted.pop(victim) + self._drafter_rows
            self._preempt(victim)
            if victim is sequence or self.kv.allocate(sequence, num_tokens):
                return index

    def _victim(self) -> int:
        """The last admitted, or with priorities the least urgent, among equals the latest arrival."""
        running = self.explicit
        if not self._by_priority:
            return len(running) - 1
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrived_at, -i))

    def _preempt(self, victim: Sequence) -> None:
        """Send a sequence that runs no more to the front of the queue; it keeps its output and recomputes the rest."""
        self.kv.evict(victim)
        victim.running = False
        victim.num_computed_tokens = 0
        victim.num_stale_tokens = victim.num_in_flight_tokens
        victim.num_placeholders = 0
        victim.num_drafts = 0
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        self.preempted.append(victim)

    def _admit_waiting(self, defers: bool) -> None:
        waiting, kv, config = self.waiting, self.kv, self._config
        self._order_waiting()
        adapters = self._running_adapters()
        passed_over: list[Sequence] = []
        num_running = self.num_running
        while waiting and self._budget > 0 and num_running < config.max_num_seqs:
            sequence = waiting[0]
            if sequence.num_stale_tokens:
                break  # steps in flight still bring tokens from before its preemption
            if adapters is not None and not self._finds_slot(sequence.request.adapter, adapters):
                passed_over.append(waiting.popleft())
                continue
            hits = kv.cached_prefix(sequence)
            cached = start = len(hits) * self._block_size
            if sequence.request.external is not None:
                start = max(cached, num_external_tokens(sequence))
            num_known = sequence.request.input_tokens + sequence.num_output_tokens
            if defers and start < num_known - 1:
                break
            num_tokens = self._admission_tokens(sequence, start)
            if num_tokens == 0 or not kv.admit(
                sequence, start - cached + num_tokens, hits, config.reserve_full_prompt, num_running > 0
            ):
                self._note_blocked(sequence, len(hits))
                break
            kv.count_lookup(sequence, len(hits))
            waiting.popleft()
            num_running += 1
            self._num_admissions += 1
            sequence.running, sequence.running_number = True, self._num_admissions
            sequence.num_computed_tokens = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
                sequence.num_external_tokens = start - cached
            self._had_prefill |= start < num_known - 1
            self._granted[sequence] = num_tokens
            self._budget -= num_tokens + self._drafter_rows
            self.admitted.append(sequence)
            if adapters is not None:
                adapters.add(sequence.request.adapter)
        waiting.extendleft(reversed(passed_over))
        self.num_deferred = len(passed_over)
        if not defers:
            self._is_capacity_bound = bool(waiting)

    def _running_adapters(self) -> set[str] | None:
        """The adapters of all that run, computed with in this step or not; None where they do not matter."""
        if self._config.lora is None:
            return None
        return {sequence.request.adapter for sequence in self.explicit} | {""}

    def _finds_slot(self, adapter: str, adapters: set[str]) -> bool:
        """Whether a step with `adapters`, one of which stands for none, can take `adapter`, too."""
        assert self._config.lora is not None
        return adapter in adapters or len(adapters) <= self._config.lora.max_loras

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """What a newcomer computes after the `start` tokens it finds; 0 when it must wait for a larger budget."""
        num_tokens = sequence.request.input_tokens + sequence.num_output_tokens - start
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        if num_tokens > self._budget and not self._config.enable_chunked_prefill:
            return 0
        return min(num_tokens, self._budget)

    def _advance(self, sequence: Sequence, num_tokens: int) -> ScheduledTokens:
        """Count tokens as computed at once, so that the next step can be composed before this one ends."""
        context = sequence.num_computed_tokens
        num_known = sequence.request.input_tokens + sequence.num_output_tokens
        sequence.num_computed_tokens = computed = context + num_tokens
        sequence.num_in_flight_tokens += num_tokens
        samples = computed >= num_known + sequence.num_placeholders
        sequence.is_prefilling = not samples
        if samples and self._is_async:
            sequence.num_placeholders += 1
        return ScheduledTokens(sequence, num_tokens, context, num_known, samples)

    def _report_composition(self, at: Micros) -> None:
        instance = self._instance
        if self.preempted:
            instance.counters.num_preemptions += len(self.preempted)
            instance.events.extend(Preempted(at, sequence) for sequence in self.preempted)
        for sequence in self.admitted:
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
            if instance.tells_admissions:
                instance.events.append(Scheduled(at, sequence))


def num_external_tokens(sequence: Sequence) -> int:
    """Tokens that came from another instance; after a preemption they are gone. The last one is computed here."""
    external = sequence.request.external
    if external is None or sequence.num_preemptions:
        return 0
    return min(external.num_tokens, sequence.num_tokens - 1)
