"""Tokens of each request in the next step, by the rules of vLLM 0.33's scheduler.

There is no prefill and no decode: each request has tokens it has and tokens it has computed, and every step lets it
catch up. Facts and order of rules: vllm/v1/core/sched/scheduler.py, `schedule`.
"""

from collections import deque
from dataclasses import dataclass

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.interface import SlotCache
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import Sequence


@dataclass(slots=True)
class Grant:
    """Tokens one sequence computes in a step, and whether the step will sample a token for it."""

    sequence: Sequence
    num_tokens: int
    context_tokens: int
    """Computed before the step, those under way included."""
    known_tokens: int
    """Prompt and output that existed when the step was composed."""
    samples: bool


class VllmBatch:
    """Composes steps from the running list and the wait queue, both of which it changes in place."""

    def __init__(self, config: EngineConfig, kv: SlotCache) -> None:
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.admitted: list[Sequence] = []
        """Sequences that joined the batch in the latest `compose`."""
        self.preempted: list[Sequence] = []
        """Sequences evicted in the latest `compose`."""
        self.admits = True
        """Whether waiting sequences may join."""
        self._config = config
        self.kv = kv
        self._limit = config.limit_tokens
        self._order = ORDERS[config.scheduler]
        self._by_priority = config.preemption_policy == "priority"
        self._drafter_rows = config.speculation.rows_per_request if config.speculation else 0
        """Tokens of the budget that a drafter takes for each granted sequence."""
        self._budget = 0
        self._threshold = 0
        self._granted: dict[Sequence, int] = {}
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._had_prefill = False
        self._is_capacity_bound = False
        self._deferred: set[Sequence] = set()

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_deferred(self) -> int:
        """Waiting sequences that a composition passed over; one that leaves counts no more from that instant on."""
        return len(self._deferred)

    def compose(self) -> list[Grant]:
        """Grant tokens for one step; an empty list when there is nothing to do now."""
        self.admitted, self.preempted, self._granted = [], [], {}
        self._budget = self._config.max_num_batched_tokens - self._drafter_rows
        # A long prompt is split for the sake of others, so not when it is alone.
        alone = self.num_running + len(self.waiting) <= 1
        self._threshold = 0 if alone else self._config.long_prefill_token_threshold
        self._had_prefill = False
        defers = self._defers_prefills()
        self._grant_running(defers)
        if not self.preempted and self.admits:
            self._admit_waiting(defers)
        if self._granted:
            self._num_executed_steps += 1
        if self._had_prefill:
            self._last_prefill_step = self._num_executed_steps
        return [self._advance(sequence, num_tokens) for sequence, num_tokens in self._granted.items()]

    def preempt_all(self) -> list[Sequence]:
        """Send all that runs back to the front of the queue, in order."""
        self.preempted = []
        while self.running:
            self._preempt(self.running.pop())
        return self.preempted

    def leave(self, sequence: Sequence) -> None:
        """Forget a sequence that runs or waits no more."""
        if sequence.running:
            self.running.remove(sequence)
            sequence.running = False
        else:
            self.waiting.remove(sequence)
            self._deferred.discard(sequence)

    def _defers_prefills(self) -> bool:
        """Whether this step only decodes, because prefills are spaced `prefill_schedule_interval` steps apart."""
        interval = self._config.prefill_schedule_interval
        since = self._num_executed_steps + 1 - self._last_prefill_step
        if interval == 1 or since >= interval or self._is_capacity_bound:
            return False
        return any(not sequence.is_prefilling for sequence in self.running)

    def _grant_running(self, defers: bool) -> None:
        index = 0
        running = self.running
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
                return 0  # the steps under way bring its last token
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
            victim = self.running.pop(victim_index)
            if victim_index < index:
                index -= 1
            if victim in self._granted:
                self._budget += self._granted.pop(victim) + self._drafter_rows
            self._preempt(victim)
            if victim is sequence or self.kv.allocate(sequence, num_tokens):
                return index

    def _victim(self) -> int:
        """The last admitted, or with priorities the least urgent, among equals the latest arrival."""
        if not self._by_priority:
            return len(self.running) - 1
        running = self.running
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrived_at, -i))

    def _preempt(self, victim: Sequence) -> None:
        """Send a running sequence back to the front of the queue; it keeps its output and recomputes the rest."""
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
        if self._order is not None:
            ordered = sorted(self.waiting, key=self._order)
            self.waiting.clear()
            self.waiting.extend(ordered)
        adapters = self._running_adapters()
        passed_over: deque[Sequence] = deque()
        while self.waiting and self._budget > 0 and self.num_running < self._config.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.num_stale_tokens:  # steps under way still bring tokens from before its preemption
                passed_over.appendleft(self.waiting.popleft())
                continue
            if adapters is not None and not self._finds_slot(sequence.request.adapter, adapters):
                passed_over.appendleft(self.waiting.popleft())
                continue
            hits = self.kv.cached_prefix(sequence)
            cached = len(hits) * self._config.block_size_tokens
            start = max(cached, num_external_tokens(sequence))
            if defers and start < sequence.num_tokens - 1:
                break
            num_tokens = self._admission_tokens(sequence, start)
            if num_tokens == 0 or not self.kv.admit(
                sequence, start - cached + num_tokens, hits, self._config.reserve_full_prompt, self.num_running > 0
            ):
                break
            self.kv.count_lookup(sequence, len(hits))
            self.waiting.popleft()
            self._join(sequence)
            sequence.num_computed_tokens = start
            if sequence.num_preemptions == 0:
                sequence.num_cached_tokens = start
                sequence.num_external_tokens = start - cached
            self._had_prefill |= start < sequence.num_tokens - 1
            self._granted[sequence] = num_tokens
            self._budget -= num_tokens + self._drafter_rows
            if adapters is not None:
                adapters.add(sequence.request.adapter)
        self.waiting.extendleft(passed_over)
        # Passed over now or before, and still waiting.
        self._deferred = {each for each in self.waiting if each in self._deferred or each in passed_over}
        if not defers:
            self._is_capacity_bound = len(self.waiting) > self.num_deferred

    def _running_adapters(self) -> set[str] | None:
        """The adapters of all that run, computed with in this step or not; None where they do not matter."""
        if self._config.lora is None:
            return None
        return {sequence.request.adapter for sequence in self.running} | {""}

    def _finds_slot(self, adapter: str, adapters: set[str]) -> bool:
        """Whether a step with `adapters`, one of which stands for none, can take `adapter`, too."""
        assert self._config.lora is not None
        return adapter in adapters or len(adapters) <= self._config.lora.max_loras

    def _join(self, sequence: Sequence) -> None:
        """`sequence` becomes the last of the running ones."""
        self.running.append(sequence)
        self.admitted.append(sequence)
        sequence.running = True

    def _admission_tokens(self, sequence: Sequence, start: int) -> int:
        """Return the tokens that a newcomer computes after the `start` tokens it finds; 0 when it must wait for a
        larger budget."""
        num_tokens = sequence.num_tokens - start
        if 0 < self._threshold < num_tokens:
            num_tokens = self._threshold
        if num_tokens > self._budget and not self._config.enable_chunked_prefill:
            return 0
        return min(num_tokens, self._budget)

    def _advance(self, sequence: Sequence, num_tokens: int) -> Grant:
        """Count the grant as computed at once, so that the next step can be composed before this one ends."""
        context = sequence.num_computed_tokens
        num_known = sequence.request.input_tokens + sequence.num_output_tokens
        sequence.num_computed_tokens = computed = context + num_tokens
        sequence.num_in_flight_tokens += num_tokens
        samples = computed >= num_known + sequence.num_placeholders
        sequence.is_prefilling = not samples
        if samples and self._config.async_scheduling:
            sequence.num_placeholders += 1
        return Grant(sequence, num_tokens, context, num_known, samples)


def num_external_tokens(sequence: Sequence) -> int:
    """Tokens that came from another instance; after a preemption they are gone. The last one is computed here."""
    external = sequence.request.external
    if external is None or sequence.num_preemptions:
        return 0
    return min(external.num_tokens, sequence.num_tokens - 1)
