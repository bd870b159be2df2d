"""The scheduler of Vidur's engines, whose rules compose a batch when the one before ends or a stage is free."""

from collections import deque
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import Pipeline
from blis_sim.engine.context import EngineContext
from blis_sim.engine.engine_defaults import AUTO, EngineDefaults
from blis_sim.engine.engine_defaults import BatchLimits as StepLimits
from blis_sim.engine.events import BatchDone, EventKind, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.scheduler.batch import MAX_REPEATED_STEPS, MIN_STEPS_AT_ONCE, MultiStep
from blis_sim.engine.scheduler.interface import PauseState, Scheduler
from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from blis_sim.wings.vidur.rules import RULES, Batch, BatchLimits, BatchRules, BlockCounts, Job


class SequenceJob(Job):
    """A request as rules see it, with its sequence in the engine."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: Sequence, limit_tokens: int) -> None:
        request = sequence.request
        room = max(limit_tokens - request.input_tokens, 1)
        output = min(max(request.output_tokens, 1), room)
        declared = min(max(sequence.max_output_tokens or room, 1), room)
        most = request.input_tokens + declared
        super().__init__(float(sequence.arrived_at), request.input_tokens, output, most)
        if request.external is not None:
            self.processed = min(request.external.num_tokens, request.input_tokens - 1)
        self.sequence = sequence


class RunningBatch:
    """A batch under way: the index of its step, its end, and when it enters and leaves each of several stages."""

    __slots__ = ("batch", "ends_at", "index", "shape", "stages")

    def __init__(
        self, batch: Batch, index: int, ends_at: Micros, shape: BatchShape, stages: list[tuple[Micros, Micros]]
    ) -> None:
        self.batch, self.index, self.ends_at, self.shape, self.stages = batch, index, ends_at, shape, stages


class VidurScheduler:
    """Takes steps of `rules`; as many run at once as there are pipeline stages, each of which has a queue."""

    def __init__(self, context: EngineContext, reports_steps: bool, rules: BatchRules) -> None:
        config = context.config
        self.num_deferred = 0
        self.rules = rules
        self._context = context
        self._reports_steps = reports_steps
        self._limit_tokens = config.limit_tokens
        self._num_stages = config.num_stages
        self._pipeline = None if config.pipeline is None else Pipeline(config.pipeline)
        self._order = ORDERS[config.scheduler]
        self._jobs: dict[Sequence, SequenceJob] = {}
        self._running: deque[RunningBatch] = deque()
        self._planned = False
        self._pause_state = PauseState.NONE
        self._num_admissions = 0
        self._take_steps = MultiStep(context).take

    @property
    def kv(self) -> BlockCounts:
        return self.rules.blocks

    @property
    def num_running(self) -> int:
        return len(self._jobs) - len(self.rules.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self.rules.waiting)

    @property
    def num_begun_steps(self) -> int:
        return len(self._context.steps)

    @property
    def takes_only_empty_steps(self) -> bool:
        return False

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        self._jobs[sequence] = job = SequenceJob(sequence, self._limit_tokens)
        self.rules.add(job)
        if self._order is not None:
            self._sort_waiting()
        self._plan(at)

    def remove(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        job = self._jobs.pop(sequence)
        for running in self._running:
            _leave(running.batch, job)
        self.rules.drop(job)
        sequence.running = False
        self._context.end_and_report(sequence, outcome, at)
        self._plan(at)

    def set_pause_state(self, pause_state: PauseState, at: Micros) -> None:
        self._pause_state = pause_state
        self._plan(at)

    def preempt_all(self, at: Micros) -> None:
        rules = self.rules
        rules.restarted = []
        jobs = rules.take_ready()
        for running in self._running:
            jobs += running.batch.jobs
            running.batch.jobs, running.batch.tokens = [], []
        for job in reversed(jobs):
            rules.restart(job)
        self._report(at)
        self._plan(at)

    def step(self, at: Micros) -> None:
        self._planned = False
        self._take_steps_from(at)

    def step_ended(self, report: object, at: Micros) -> None:
        assert isinstance(report, RunningBatch)
        self._end(self._running.popleft(), at)
        if self._last_free_instant() >= at:
            self._take_steps_from(at)
        else:
            self._plan(at)  # what else is due at this instant comes first

    def _plan(self, at: Micros) -> None:
        if not self._planned and len(self._running) < self._num_stages:
            self._planned = True
            self._context.queue.push(at, EventKind.STEP)

    def _take_steps_from(self, at: Micros) -> None:
        """Compose batches from `at` on, and end those of a single stage that end before something else is due."""
        context = self._context
        while True:
            context.clock = max(at, context.clock)
            while len(self._running) < self._num_stages and (batch := self._compose(at)) is not None:
                running = self._begin(batch, at)
                self._running.append(running)
                if self._num_stages > 1:
                    context.queue.push(running.ends_at, EventKind.STEP_END, running)
            if self._num_stages > 1 or not self._running:
                return
            running = self._running[0]
            if running.ends_at > self._last_free_instant():
                context.queue.push(running.ends_at, EventKind.STEP_END, running)
                return
            at = running.ends_at
            self._end(self._running.popleft(), at)

    def _compose(self, at: Micros) -> Batch | None:
        rules = self.rules
        if self._pause_state is PauseState.EVERYTHING:
            return None
        if self._pause_state is PauseState.ADMISSIONS:
            held, rules.waiting = rules.waiting, deque()
            batch = rules.compose()
            rules.waiting.extend(held)
        else:
            batch = rules.compose()
        if rules.started or rules.restarted:
            self._report(at)
        return batch

    def _report(self, at: Micros) -> None:
        """Report which requests began, and which lost their blocks."""
        context = self._context
        for job in self.rules.restarted:
            sequence = _sequence(job)
            sequence.running = False
            sequence.num_computed_tokens = 0
            sequence.num_preemptions += 1
            context.counters.num_preemptions += 1
            context.events.append(Preempted(at, sequence))
        for job in self.rules.started:
            sequence = _sequence(job)
            self._num_admissions += 1
            sequence.running, sequence.running_number = True, self._num_admissions
            sequence.num_computed_tokens = job.processed
            if sequence.scheduled_at is None:
                sequence.scheduled_at = at
                sequence.num_cached_tokens = sequence.num_external_tokens = job.processed
            if context.reports_admissions:
                context.events.append(Scheduled(at, sequence))

    def _begin(self, batch: Batch, at: Micros) -> RunningBatch:
        """Begin a batch, and take those that are equal to it while nothing else is due."""
        context = self._context
        if self._num_stages == 1 and not batch.num_prefill_tokens:
            most = self._num_at_once(batch)
            if most >= MIN_STEPS_AT_ONCE:
                return self._take_many_steps(batch, at, most)
        shape = batch.shape(context.recent_prompts.tokens_at(at) if batch.num_prefill_tokens else 0)
        context.last_shape = shape
        started_at = at if self._pipeline is None else self._pipeline.start(at)
        duration_us = context.latency.step_time(shape) or 1
        computed_at = ends_at = started_at + duration_us
        if self._pipeline is not None:
            computed_at, ends_at = self._pipeline.enter(started_at, duration_us, shape.num_tokens, samples=False)
        if shape.prefill_tokens:
            context.recent_prompts.add(shape.prefill_tokens, computed_at)
        stages = [] if self._pipeline is None else self._pipeline.passages
        return RunningBatch(batch, context.steps.append(started_at, ends_at), ends_at, shape, stages)

    def _num_at_once(self, batch: Batch) -> int:
        """Return how many batches can be taken at once: `batch` and those equal to it."""
        context = self._context
        is_reported = self._reports_steps and not context.allows_multi_step
        if self._pause_state is not PauseState.NONE or is_reported or context.reports_batches:
            return 1
        most = 1 + self.rules.num_equal_batches(batch)
        return min(most, MAX_REPEATED_STEPS + 1) if self._reports_steps else most

    def _take_many_steps(self, batch: Batch, at: Micros, most: int) -> RunningBatch:
        """Take up to `most` equal batches, each of which begins before something else is due."""
        context, decodes = self._context, batch.decodes
        first = len(context.steps)
        num_tokens = batch.decode_context_tokens - decodes
        count, started_at, ends_at = self._take_steps(at, max(at, self._last_free_instant()), decodes, num_tokens, most)
        context.clock = max(started_at, context.clock)
        if count > 1:
            self.rules.repeat(batch, count - 1)
            sequences = [_sequence(job) for job in batch.jobs]
            for sequence in sequences:
                sequence.add_token_steps(first, count - 1)
                sequence.num_output_tokens += count - 1
                sequence.num_computed_tokens += count - 1
            if self._reports_steps:
                ends = [context.steps.end(index) for index in range(first, first + count - 1)]
                context.events.append(StepsDone(ends, first, sequences))
        context.last_shape = shape = batch.shape()
        return RunningBatch(batch, first + count - 1, ends_at, shape, [])

    def _end(self, running: RunningBatch, at: Micros) -> None:
        """Process the outputs of a batch."""
        context, batch, index = self._context, running.batch, running.index
        batch_done = self._batch_done(running, at) if context.reports_batches else None
        complete = self.rules.end(batch)
        if batch_done is not None:
            batch_done.num_blocks_after = self.kv.num_used_blocks
            context.events.append(batch_done)
        emitted: list[Sequence] = []
        for job, count in zip(batch.jobs, batch.tokens, strict=True):
            sequence = _sequence(job)
            sequence.num_computed_tokens += count
            if not job.is_prefilled:
                continue
            sequence.num_output_tokens += 1
            if sequence.first_token_step is None:
                sequence.first_token_step, sequence.first_token_at = index, at
            else:
                sequence.add_token_step(index)
            if sequence.output_tokens > 0:
                emitted.append(sequence)
        if self._reports_steps:
            context.events.append(StepDone(at, index, context.steps.start(index), emitted))
        for job in complete:
            self._complete(_sequence(job), at)

    def _batch_done(self, running: RunningBatch, at: Micros) -> BatchDone:
        """Return the report of a batch, before its tokens are processed."""
        prompts: list[tuple[Sequence, int]] = []
        decoding: list[Sequence] = []
        for job, count in zip(running.batch.jobs, running.batch.tokens, strict=True):
            sequence = _sequence(job)
            if sequence.first_token_step is None:
                prompts.append((sequence, count))
            else:
                decoding.append(sequence)
        started_at, num_used_blocks = self._context.steps.start(running.index), self.kv.num_used_blocks
        return BatchDone(
            at,
            running.index,
            started_at,
            running.shape._replace(recent_prefill_tokens=0),
            prompts,
            decoding,
            num_used_blocks,
            num_used_blocks,
            running.stages,
        )

    def _complete(self, sequence: Sequence, at: Micros) -> None:
        del self._jobs[sequence]
        sequence.running = False
        most, context = sequence.output_tokens, self._context
        outcome = Outcome.COMPLETED if sequence.num_output_tokens >= most else Outcome.LENGTH_CAPPED
        sequence.num_output_tokens = min(sequence.num_output_tokens, most)
        context.end(sequence, outcome)
        context.counters.output_tokens += sequence.num_output_tokens
        context.events.append(Finished(at, sequence, outcome))

    def _sort_waiting(self) -> None:
        order = self._order
        assert order is not None
        self.rules.waiting = deque(sorted(self.rules.waiting, key=lambda job: order(_sequence(job))))

    def _last_free_instant(self) -> Micros:
        """Return the last instant at which a step may begin without other events before it."""
        others_at, until = self._context.queue.next_at(), self._context.until
        return until if others_at is None or others_at > until else others_at - 1


def _sequence(job: Job) -> Sequence:
    assert isinstance(job, SequenceJob)
    return job.sequence


def _leave(batch: Batch, job: Job) -> None:
    """Remove a request from a batch under way; its computation is lost."""
    if job in batch.jobs:
        place = batch.jobs.index(job)
        batch.jobs = batch.jobs[:place] + batch.jobs[place + 1 :]
        batch.tokens = batch.tokens[:place] + batch.tokens[place + 1 :]


@dataclass(frozen=True, slots=True)
class VidurEngine:
    """An engine of Vidur's: makes its scheduler, and has the defaults of its settings."""

    name: str
    max_num_batched_tokens: int = 4096
    block_size_tokens: int = 16

    def __call__(self, context: EngineContext, reports_steps: bool) -> Scheduler:
        config = context.config
        limits = BatchLimits(
            num_blocks=config.total_kv_blocks,
            block_size_tokens=config.block_size_tokens,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.token_budget,
            max_model_len=config.limit_tokens,
            num_stages=config.num_stages,
        )
        return VidurScheduler(context, reports_steps, RULES[self.name](limits))

    @property
    def defaults(self) -> EngineDefaults:
        """The defaults of the engine that do not depend on the hardware. LightLLM counts single tokens."""
        is_lightllm = self.name == "lightllm"
        return EngineDefaults(
            gpu_memory_utilization=0.9,
            latency_model=AUTO,
            limits=StepLimits(self.max_num_batched_tokens, 128),
            block_size_tokens=self.block_size_tokens,
            keeps_block=False,
            has_kv_groups=False,
            has_stages=not is_lightllm,
            has_other_block_sizes=not is_lightllm,
        )


SARATHI = VidurEngine("sarathi", 512)
VIDUR_VLLM = VidurEngine("vidur-vllm")
ORCA = VidurEngine("orca")
LIGHTLLM = VidurEngine("lightllm", block_size_tokens=1)
FASTER_TRANSFORMER = VidurEngine("faster-transformer")
SPLITWISE = VidurEngine("splitwise")
