"""Steps as BLIS takes them: all of a step is decided when it starts and reported when it ends.

A step has four phases: form the batch, execute it, complete what is done, plan the next step.
"""

from collections import deque

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.kv_cache.blis_cache import KVCache, PromptCache
from blis_sim.engine.queue import EventKind
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from tests.oracle_scheduler.blis_batch import BatchFormation


class PlainBlisScheduler:
    """One step after the other, each composed when the previous one ends."""

    def __init__(self, instance: EngineContext, kv: PromptCache | None = None) -> None:
        config = instance.config
        self.kv = kv or KVCache(config.total_kv_blocks, config.block_size_tokens)
        self._instance = instance
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._batch = BatchFormation(config, self.kv, self._running, self._waiting)
        self._order = ORDERS[config.scheduler]
        self._step_planned = False
        self._pause_state = PauseState.NONE
        self._ends_at: Micros = 0
        """End of the latest step."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_deferred(self) -> int:
        return 0

    @property
    def takes_only_empty_steps(self) -> bool:
        return False

    @property
    def num_begun_steps(self) -> int:
        return len(self._instance.steps)

    def reserve(self, sequence: Sequence) -> bool:
        """Blocks for a whole prompt that will come computed from elsewhere; False, and nothing changed, without room.

        None is found in the cache: they are all filled anew.
        """
        num_tokens = sequence.request.input_tokens
        if not self.kv.allocate_prompt(sequence, num_tokens):
            return False
        sequence.num_computed_tokens = self._batch.num_granted_tokens[sequence] = num_tokens
        sequence.is_decode_subrequest = True
        self._batch.holds_while_waiting = True
        return True

    def release_reservation(self, sequence: Sequence) -> None:
        """Free what was reserved for a prompt that will not come."""
        self.kv.release(sequence)

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self._waiting.append(sequence)
        self._plan_step(at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        if sequence.running:
            self._running.remove(sequence)
            sequence.running = False
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self.kv.release(sequence)
        self._instance.end_and_report(sequence, outcome, at)
        if not self._running:
            self._plan_step(at)

    def step(self, at: Micros) -> None:
        self._step_planned = False
        if not self._has_work:
            return
        self._schedule_batch(at)
        ends_at, emitted = self._execute_batch(at)
        self._ends_at = ends_at
        finished = self._process_completions(ends_at)
        queue = self._instance.queue
        step_done = StepDone(ends_at, len(self._instance.steps) - 1, at, emitted)
        queue.push(ends_at, EventKind.STEP_END, (step_done, finished))
        if finished:
            queue.push(ends_at, EventKind.DEPARTURE)
        # BLIS forgets a step under way in which every request completed: with nothing left to do it plans no step, and
        # the next arrival starts one at once, even before this one ends.
        if self._running or self._waiting:
            self._step_planned = True
            queue.push(ends_at, EventKind.STEP)

    def step_ended(self, report: object, at: Micros) -> None:
        assert isinstance(report, tuple)
        step_done, finished = report
        self._instance.events.append(step_done)
        self._instance.events.extend(finished)

    def set_pause_state(self, hold: PauseState, at: Micros) -> None:
        self._pause_state = hold
        self._batch.admits = hold is PauseState.NONE
        self._plan_after_step(at)

    def preempt_all(self, at: Micros) -> None:
        preempted = self._batch.preempt_all()
        self._instance.counters.num_preemptions += len(preempted)
        self._instance.events.extend(Preempted(at, sequence) for sequence in preempted)
        self._plan_after_step(at)

    @property
    def _has_work(self) -> bool:
        """Whether a step would have a request in it, as far as holds allow."""
        if self._pause_state is PauseState.NONE:
            return bool(self._running or self._waiting)
        return self._pause_state is PauseState.ADMISSIONS and bool(self._running)

    def _plan_after_step(self, at: Micros) -> None:
        """Plan a step for what there is to do now, at the end of the one under way."""
        if not self._step_planned and self._has_work:
            self._step_planned = True
            self._instance.queue.push(max(at, self._ends_at), EventKind.STEP)

    def _plan_step(self, at: Micros) -> None:
        """Work waits, so a step must be planned (INV-8)."""
        if not self._step_planned and self._waiting:
            self._step_planned = True
            self._instance.queue.push(at, EventKind.STEP)

    def _schedule_batch(self, at: Micros) -> None:
        """Phase 1: order the queue, form the batch."""
        self._order_waiting()
        self._batch.form()
        self._report_batch(at)

    def _order_waiting(self) -> None:
        if self._order is not None:
            ordered = sorted(self._waiting, key=self._order)
            self._waiting.clear()
            self._waiting.extend(ordered)

    def _report_batch(self, at: Micros) -> None:
        batch = self._batch
        events, reports_admissions = self._instance.events, self._instance.reports_admissions
        self._instance.counters.num_preemptions += len(batch.preempted)
        self._instance.counters.num_reservations_evicted = batch.num_reservations_evicted
        events.extend(Preempted(at, sequence) for sequence in batch.preempted)
        for sequence in batch.admitted:
            sequence.scheduled_at = at
            if reports_admissions:
                events.append(Scheduled(at, sequence))

    def _execute_batch(self, at: Micros) -> tuple[Micros, list[Sequence]]:
        """Phase 2: the step's time, and the progress of every sequence. Returns its end and the sequences that have one
        more token."""
        instance = self._instance
        instance.last_shape = shape = batch_shape(self._running, self._batch.new_tokens)
        ends_at = at + self._step_time(shape)
        step = instance.steps.append(at, ends_at)
        emitted: list[Sequence] = []
        for sequence in self._running:
            prompt_tokens = sequence.request.input_tokens
            if sequence.num_computed_tokens < prompt_tokens:
                sequence.num_computed_tokens = self._batch.num_granted_tokens[sequence]
            elif self._batch.new_tokens[sequence] > 0:
                sequence.num_computed_tokens += 1
                sequence.add_token_step(step)
                emitted.append(sequence)
            if sequence.num_computed_tokens >= prompt_tokens and sequence.first_token_step is None:
                # At once with the second token if the prompt was computed elsewhere.
                sequence.first_token_step = step
                sequence.first_token_at = ends_at
                if sequence.num_computed_tokens == prompt_tokens and sequence.request.output_tokens > 0:
                    emitted.append(sequence)
        return ends_at, emitted

    def _step_time(self, shape: BatchShape) -> Micros:
        return max(1, self._instance.latency.step_time(shape))

    def _process_completions(self, ends_at: Micros) -> list[Finished]:
        """Phase 3: take out what is done, by its own length or by max_model_len."""
        finished: list[Finished] = []
        max_model_len = self._instance.config.max_model_len
        for sequence in self._running:
            request = sequence.request
            computed = sequence.num_computed_tokens
            if computed >= request.input_tokens + max(request.output_tokens, 1) - 1:
                self._complete(sequence, Outcome.COMPLETED, ends_at, finished)
            elif max_model_len and computed >= max_model_len - 1:
                self._complete(sequence, Outcome.LENGTH_CAPPED, ends_at, finished)
        if finished:
            self._running[:] = [sequence for sequence in self._running if sequence.running]
        return finished

    def _complete(self, sequence: Sequence, outcome: Outcome, ends_at: Micros, finished: list[Finished]) -> None:
        request, computed = sequence.request, sequence.num_computed_tokens
        # BLIS stores the last token too, which vLLM does not: it can take a block, or fail to.
        wants_block = request.output_tokens > 0 and computed < request.input_tokens + request.output_tokens
        if outcome is Outcome.COMPLETED and wants_block and not self.kv.allocate_token(sequence):
            self._instance.counters.num_kv_allocation_failures += 1
        self.kv.release(sequence)
        sequence.running = False
        # A request is credited with what it produced, at most with what it was to produce.
        sequence.num_output_tokens = min(computed - request.input_tokens + 1, request.output_tokens)
        self._instance.end(sequence, outcome)
        self._instance.counters.output_tokens += sequence.num_output_tokens
        finished.append(Finished(ends_at, sequence, outcome))


def batch_shape(running: list[Sequence], new_tokens: dict[Sequence, int]) -> BatchShape:
    """The sums over those of `running` that compute in this step. Cost: O(running)."""
    prefills = tokens = squares = contexts = context_work = prompt_work = 0
    decodes = decode_contexts = 0
    for sequence in running:
        new = new_tokens[sequence]
        if new == 0:
            continue
        computed = sequence.num_computed_tokens
        if computed < sequence.request.input_tokens:
            prefills += 1
            tokens += new
            squares += new * new
            contexts += computed
            context_work += new * computed
            prompt_work += new * sequence.request.input_tokens
        else:
            decodes += 1
            decode_contexts += computed
    return BatchShape(
        prefill_requests=prefills,
        prefill_tokens=tokens,
        prefill_tokens_squared=squares,
        prefill_context_tokens=contexts,
        prefill_context_work=context_work,
        prefill_prompt_work=prompt_work,
        decode_requests=decodes,
        decode_context_tokens=decode_contexts,
    )
