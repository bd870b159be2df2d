"""Requests in slots, each on a clock of its own: no batch and no step, only times set for each token.

A request that gets a slot keeps it to its end. Its prompt takes KV blocks, which others may share, its answer none.
"""

from collections import deque

from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import CacheChanged, EventKind, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.kv_cache.slot_caches import new_slot_cache
from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.engine.scheduler.batch import num_external_tokens
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

MIN_TOKENS_AT_ONCE = 4
MAX_TOKENS_AT_ONCE = 64
"""Fewest and most tokens that a sequence is given at once, to drivers that allow it."""


class FixedTimingScheduler:
    """Runs requests in slots with set times, as llm-d-inference-sim does. Every token counts as a step in which only
    its request emitted.

    The index of such a step is the number of tokens that its request had before.
    """

    def __init__(self, context: EngineContext) -> None:
        config = context.config
        assert config.timing is not None
        self.kv = new_slot_cache(config, context.cache_changes)
        self.num_deferred = 0
        self.set_timing(config.timing)
        self._context = context
        self._order = ORDERS[config.scheduler]
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, int] = {}
        """Running sequences, each with the number that its draws depend on."""
        self._num_started = 0
        self._pause_state = PauseState.NONE
        self._paused_tokens: list[tuple[Sequence, int]] = []
        """Tokens that were due while everything was paused."""

    def set_timing(self, timing: RequestTiming) -> None:
        """Take the times of all tokens to come from `timing`; those awaited already stay due when they were."""
        self.timing = timing
        self._even_gap = timing.even_gap

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def takes_only_empty_steps(self) -> bool:
        return False

    @property
    def num_begun_steps(self) -> int:
        return len(self._context.steps)

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self._waiting.append(sequence)
        self._plan(at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        self._context.end_and_report(sequence, outcome, at)
        self._plan(at)

    def step(self, at: Micros) -> None:
        """Give free slots to waiting requests."""
        if self._pause_state is not PauseState.NONE:
            return
        if self._order is not None:
            self._waiting = deque(sorted(self._waiting, key=self._order))
        deferred: deque[Sequence] = deque()
        while self._waiting and len(self._running) < self._context.config.max_num_seqs:
            sequence = self._waiting[0]
            if not self._finds_adapter_slot(sequence.request.adapter):
                deferred.appendleft(self._waiting.popleft())
            elif not self._start(sequence, at):
                break
        self._waiting.extendleft(deferred)
        self.num_deferred = len(deferred)

    def step_ended(self, report: object, at: Micros) -> None:
        """Add the token that is due, unless its request has ended or was preempted."""
        assert isinstance(report, tuple)
        sequence, num_preemptions = report
        if sequence.outcome is not None or sequence.num_preemptions != num_preemptions:
            return
        if self._pause_state is PauseState.EVERYTHING:
            self._paused_tokens.append(report)
            return
        if not self._take_many_tokens(sequence, at):
            self._add_token(sequence, at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._pause_state = pause_state
        if pause_state is not PauseState.EVERYTHING:
            for report in self._paused_tokens:
                self._context.queue.push(at, EventKind.STEP_END, report, self._running.get(report[0], 0))
            self._paused_tokens = []
        self._plan(at)

    def preempt_all(self, at: Micros) -> None:
        for sequence in reversed(self._running):
            self.kv.evict(sequence)
            sequence.running = False
            sequence.num_preemptions += 1
            self._waiting.appendleft(sequence)
            self._context.events.append(Preempted(at, sequence))
        self._context.counters.num_preemptions += len(self._running)
        self._running.clear()
        self._plan(at)

    def shrink_cache(self, num_blocks: int, at: Micros) -> None:
        """Withhold `num_blocks` KV blocks, or all free ones, from all requests; 0 gives all blocks back."""
        self.kv.withhold(num_blocks)
        self._plan(at)

    def _plan(self, at: Micros) -> None:
        self._context.queue.push(at, EventKind.STEP)

    def _finds_adapter_slot(self, adapter: str) -> bool:
        lora = self._context.config.lora
        if lora is None or not adapter:
            return True
        running = {sequence.request.adapter for sequence in self._running} - {""}
        return adapter in running or len(running) < lora.max_loras

    def _start(self, sequence: Sequence, at: Micros) -> bool:
        """Give `sequence` a slot, if its prompt finds blocks."""
        hits = self.kv.cached_prefix(sequence)
        start = self.kv.num_found_tokens(hits)
        new_tokens = sequence.input_tokens - start
        if not self.kv.admit(sequence, new_tokens, hits, whole_must_fit=False, others_run=bool(self._running)):
            return False
        self._waiting.popleft()
        self.kv.count_lookup(sequence, len(hits))
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = max(start, num_external_tokens(sequence))
            sequence.num_external_tokens = sequence.num_cached_tokens - start
        if sequence.scheduled_at is None:
            sequence.scheduled_at = at
        sequence.running = True
        self._running[sequence] = self._num_started
        self._num_started += 1
        if self._context.reports_admissions:
            self._context.events.append(Scheduled(at, sequence))
        self._await_token(sequence, self._first_token_time(sequence, start), at)
        return True

    def _first_token_time(self, sequence: Sequence, num_cached: int) -> Micros:
        number, num_tokens = self._running[sequence], sequence.input_tokens
        if sequence.num_external_tokens:
            return self.timing.transfer_time(number, num_tokens)
        return self.timing.first_token_time(number, num_tokens, num_cached, len(self._running))

    def _await_token(self, sequence: Sequence, wait: Micros, at: Micros) -> None:
        # Its own instant comes first, so a token is never due at the instant it begins to be awaited. The earliest
        # started of several that are due at one instant is first, however far each has been taken at once.
        report = sequence, sequence.num_preemptions
        self._context.queue.push(at + max(1, wait), EventKind.STEP_END, report, self._running[sequence])

    def _take_many_tokens(self, sequence: Sequence, at: Micros) -> bool:
        """Take many tokens at once, the first of which is due at `at`, but for a first and a last one.

        Only if the driver allows it and nothing but the clock decides when they come.
        """
        context, gap = self._context, self._even_gap
        if (
            not context.allows_multi_step
            or gap is None
            or sequence.first_token_step is None
            or context.queue.num_aborts
        ):
            return False
        request, first = sequence.request, sequence.num_output_tokens
        last = min(request.output_tokens, context.config.limit_tokens - request.input_tokens)
        count = min(MAX_TOKENS_AT_ONCE, last - 1 - first, (context.until - at) // gap + 1)
        if count < MIN_TOKENS_AT_ONCE or request.deadline_us or context.cache_changes:
            return False
        ends = range(at, at + count * gap, gap)
        for end in ends:
            context.steps.append(end, end)
        sequence.num_output_tokens += count
        sequence.add_token_steps(first, count)
        context.events.append(StepsDone(ends, first, [sequence]))
        self._await_token(sequence, gap, ends[-1])
        return True

    def _add_token(self, sequence: Sequence, at: Micros) -> None:
        context = self._context
        context.steps.append(at, at)
        # Among the steps of all, those of one request would be runs of one step each, to be counted at every token.
        index = sequence.num_output_tokens
        sequence.num_output_tokens += 1
        if sequence.first_token_step is None:
            sequence.first_token_step = index
            sequence.first_token_at = at
        else:
            sequence.add_token_step(index)
        emitted = [sequence] if sequence.output_tokens > 0 else []
        context.events.append(StepDone(at, index, at, emitted))
        self._report_cache_changes(at)
        outcome = self._ending(sequence)
        if outcome is None:
            gap = self.timing.token_gap(self._running[sequence], sequence.num_output_tokens, len(self._running))
            self._await_token(sequence, gap, at)
            return
        self._leave(sequence)
        sequence.num_output_tokens = min(sequence.num_output_tokens, sequence.output_tokens)
        context.end(sequence, outcome)
        context.counters.output_tokens += sequence.num_output_tokens
        context.events.append(Finished(at, sequence, outcome))
        self._plan(at)

    def _ending(self, sequence: Sequence) -> Outcome | None:
        if sequence.num_output_tokens >= sequence.output_tokens:
            return Outcome.COMPLETED
        if sequence.num_tokens >= self._context.config.limit_tokens:
            return Outcome.LENGTH_CAPPED
        return None

    def _leave(self, sequence: Sequence) -> None:
        del self._running[sequence]
        sequence.running = False
        self.kv.release(sequence)

    def _report_cache_changes(self, at: Micros) -> None:
        changes = self._context.cache_changes
        if changes:
            self._context.events.append(CacheChanged(at, tuple(changes)))
            changes.clear()
