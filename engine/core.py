"""One simulated vLLM instance: told the time, it says what happened. Pure, synchronous, in integer microseconds.

Read this first. A request arrives, waits out its queueing overhead, passes the guards of the wait queue, is scheduled
step by step until its last token, and departs. A step has four phases: form the batch, execute it, complete what is
done, plan the next step. All of a step is decided when it starts; it is reported when it ends.
"""

from collections import deque

from engine.batch_shape import BatchShape
from engine.config import EngineConfig
from engine.events import Event, Finished, Preempted, Scheduled, StepDone
from engine.guards import refusal
from engine.kv_cache.cache import KVCache
from engine.latency.model import LatencyModel
from engine.queue import Due, EventQueue, Payload
from engine.request import Request
from engine.scheduler.batch import BatchFormation
from engine.scheduler.waiting import ORDERS, urgency
from engine.sequence import Outcome, Sequence
from engine.stats import EngineCounters, EngineStats
from engine.step_log import StepLog
from engine.units import Micros


class Engine:
    """The engine of one instance. Two drivers advance it: virtual time jumps, real time sleeps.

    `submit` and `abort` name an instant after everything already done; `advance` does all that is due. How often or
    how far a driver advances changes no instant.
    """

    def __init__(self, config: EngineConfig, latency: LatencyModel) -> None:
        self.config = config
        self.latency = latency
        self.kv = KVCache(config.total_kv_blocks, config.block_size_tokens)
        self.steps = StepLog()
        self.counters = EngineCounters()
        self.now: Micros | None = None
        """How far the engine has been advanced; None before the first time."""
        self.clock: Micros = 0
        """Instant of the last thing that happened: the simulated run ends here."""
        self.last_shape = BatchShape()
        """What the latest step computed."""
        self._queue = EventQueue()
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._batch = BatchFormation(config, self.kv, self._running, self._waiting)
        self._order = ORDERS[config.scheduler]
        self._live: dict[str, Sequence] = {}
        self._step_planned = False
        self._events: list[Event] = []

    def submit(self, request: Request, at: Micros) -> None:
        """Let `request` arrive at `at`. Raises ValueError for an instant already done or an id still in use."""
        self._demand_future(at)
        if request.id in self._live:
            raise ValueError(f"request {request.id!r} is still in the engine")
        sequence = Sequence(request, at)
        self._live[request.id] = sequence
        self._queue.push(at, Due.ARRIVAL, sequence)

    def abort(self, request_id: str, at: Micros) -> None:
        """Let the client of `request_id` hang up at `at`; ids not there then are ignored."""
        self._demand_future(at)
        self._queue.push(at, Due.ABORT, request_id)

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        return self._queue.next_at()

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; the events in the order they happened."""
        self._events = events = []
        queue = self._queue
        while (due_at := queue.next_at()) is not None and due_at <= until:
            self._execute(*queue.pop())
        if self.now is None or until > self.now:
            self.now = until
        return events

    @property
    def stats(self) -> EngineStats:
        """The present state in figures."""
        size = self.config.block_size_tokens
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_blocks_total=self.kv.pool.num_blocks,
            kv_blocks_used=self.kv.pool.num_used,
            num_preemptions=self.counters.num_preemptions,
            prefix_hit_tokens=self.kv.num_hit_blocks * size,
            prefix_queried_tokens=(self.kv.num_hit_blocks + self.kv.num_missed_blocks) * size,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when blocks or requests were lost or counted twice (INV-1, INV-4)."""
        self.kv.pool.check()
        counters = self.counters
        present = len(self._running) + len(self._waiting)
        ended = sum(counters.ended.values())
        assert counters.num_enqueued == ended + present, (
            f"{counters.num_enqueued} requests queued, but {ended} ended and {present} are present"
        )

    def _demand_future(self, at: Micros) -> None:
        if self.now is not None and at <= self.now:
            raise ValueError(f"the engine has already done everything up to {self.now} us, so not at {at} us")

    def _execute(self, at: Micros, due: int, _number: int, payload: Payload) -> None:
        if isinstance(payload, tuple):
            step_done, finished = payload
            self._events.append(step_done)
            self._events.extend(finished)
            return
        if isinstance(payload, str):
            self._hang_up(payload, at)
            return
        self.clock = at
        if payload is None:
            if due == Due.STEP:
                self._step(at)
        elif due == Due.ARRIVAL:
            self._queue.push(at + self.latency.queueing_time(payload.request.input_tokens), Due.QUEUED, payload)
        elif due == Due.QUEUED:
            self._enqueue(payload, at)
        else:
            self._remove(payload, Outcome.TIMED_OUT, at)

    # --- requests enter and leave ---

    def _enqueue(self, sequence: Sequence, at: Micros) -> None:
        if sequence.outcome is not None:
            return
        request = sequence.request
        self.counters.num_enqueued += 1
        max_model_len = self.config.max_model_len
        if sequence.max_output_tokens == 0 and request.input_tokens < max_model_len:
            sequence.max_output_tokens = max_model_len - request.input_tokens
        reason = refusal(self.config, request.input_tokens, sequence.max_output_tokens)
        if reason is not None:
            self._end(sequence, Outcome.DROPPED)
            self._events.append(Finished(at, sequence, Outcome.DROPPED, reason))
            return
        self.counters.input_tokens += request.input_tokens
        if 0 < request.deadline_us <= at:
            self._end(sequence, Outcome.TIMED_OUT)
            self._events.append(Finished(at, sequence, Outcome.TIMED_OUT))
            return
        sequence.priority = urgency(request.slo_class)
        self._waiting.append(sequence)
        if request.deadline_us > 0:
            self._queue.push(request.deadline_us, Due.DEADLINE, sequence)
        self._plan_step(at)

    def _hang_up(self, request_id: str, at: Micros) -> None:
        sequence = self._live.get(request_id)
        if sequence is None or at < sequence.arrived_at:
            return
        self.clock = at
        if not sequence.running and sequence not in self._waiting:
            self.counters.num_enqueued += 1  # it never reached the queue, yet it ends here and must be counted
        self._remove(sequence, Outcome.ABORTED, at)

    def _remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        """Take a request out of the middle of its life and free what it holds."""
        if sequence.running:
            self._running.remove(sequence)
            sequence.running = False
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self.kv.release(sequence)
        self._end(sequence, outcome)
        self._events.append(Finished(at, sequence, outcome))
        if not self._running:
            self._plan_step(at)

    def _end(self, sequence: Sequence, outcome: Outcome) -> None:
        sequence.outcome = outcome
        self.counters.ended[outcome] += 1
        del self._live[sequence.request.id]

    # --- the step ---

    def _plan_step(self, at: Micros) -> None:
        """Work waits, so a step must be planned (INV-8)."""
        if not self._step_planned and self._waiting:
            self._step_planned = True
            self._queue.push(at, Due.STEP)

    def _step(self, at: Micros) -> None:
        self._step_planned = False
        if not self._running and not self._waiting:
            return
        self._schedule_batch(at)
        ends_at, emitted = self._execute_batch(at)
        finished = self._process_completions(ends_at)
        self._queue.push(ends_at, Due.STEP_END, (StepDone(ends_at, len(self.steps) - 1, at, emitted), finished))
        if finished:
            self._queue.push(ends_at, Due.DEPARTURE)
        # BLIS forgets a step under way in which everybody completed: with nothing left to do it plans no step, and
        # the next arrival starts one at once, even before this one ends.
        if self._running or self._waiting:
            self._step_planned = True
            self._queue.push(ends_at, Due.STEP)

    def _schedule_batch(self, at: Micros) -> None:
        """Phase 1: order the queue, form the batch."""
        if self._order is not None:
            ordered = sorted(self._waiting, key=self._order)
            self._waiting.clear()
            self._waiting.extend(ordered)
        batch = self._batch
        batch.form()
        self.counters.num_preemptions += len(batch.preempted)
        self._events.extend(Preempted(at, sequence) for sequence in batch.preempted)
        for sequence in batch.admitted:
            sequence.scheduled_at = at
            self._events.append(Scheduled(at, sequence))

    def _execute_batch(self, at: Micros) -> tuple[Micros, list[Sequence]]:
        """Phase 2: the step's time, and everyone's progress. Returns its end and who has one more token."""
        self.last_shape = batch_shape(self._running)
        step_time = max(1, self.latency.step_time(self.last_shape))
        ends_at = at + step_time
        step = self.steps.append(at, ends_at)
        emitted: list[Sequence] = []
        for sequence in self._running:
            prompt_tokens = sequence.request.input_tokens
            sequence.context_tokens = sequence.num_computed_tokens
            if sequence.num_computed_tokens < prompt_tokens:
                sequence.num_computed_tokens = sequence.num_granted_tokens
            elif sequence.new_tokens > 0:
                sequence.num_computed_tokens += 1
                _extend_runs(sequence.token_runs, step)
                emitted.append(sequence)
            if sequence.num_computed_tokens == prompt_tokens and sequence.first_token_step is None:
                sequence.first_token_step = step
                sequence.first_token_at = ends_at
                if sequence.request.output_tokens > 0:
                    emitted.append(sequence)
        self.counters.used_block_time_us += self.kv.pool.num_used * step_time
        return ends_at, emitted

    def _process_completions(self, ends_at: Micros) -> list[Finished]:
        """Phase 3: take out what is done, by its own length or by max_model_len."""
        finished: list[Finished] = []
        max_model_len = self.config.max_model_len
        for sequence in self._running:
            request = sequence.request
            computed = sequence.num_computed_tokens
            if computed >= request.input_tokens + max(request.output_tokens, 1) - 1:
                outcome = Outcome.COMPLETED
                # BLIS stores the last token too, which vLLM does not: it can take a block, or fail to.
                wants_block = request.output_tokens > 0 and computed < request.input_tokens + request.output_tokens
                if wants_block and not self.kv.allocate_token(sequence):
                    self.counters.num_kv_allocation_failures += 1
            elif max_model_len and computed >= max_model_len - 1:
                outcome = Outcome.LENGTH_CAPPED
            else:
                continue
            self.kv.release(sequence)
            sequence.running = False
            self._end(sequence, outcome)
            self.counters.output_tokens += output_tokens(sequence)
            finished.append(Finished(ends_at, sequence, outcome))
        if finished:
            self._running[:] = [sequence for sequence in self._running if sequence.running]
        return finished


def batch_shape(running: list[Sequence]) -> BatchShape:
    """The sums over those of `running` that compute in this step. Cost: O(running)."""
    prefills = tokens = squares = contexts = context_work = prompt_work = 0
    decodes = decode_contexts = 0
    for sequence in running:
        new = sequence.new_tokens
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


def output_tokens(sequence: Sequence) -> int:
    """Tokens a completed request is credited with: those it produced, at most those it was to produce."""
    request = sequence.request
    return min(sequence.num_computed_tokens - request.input_tokens + 1, request.output_tokens)


def _extend_runs(runs: list[list[int]], step: int) -> None:
    """Append `step` to the last run if it continues it, else begin a new one."""
    if runs and runs[-1][0] + runs[-1][1] == step:
        runs[-1][1] += 1
    else:
        runs.append([step, 1])
