"""One replica on the engine's clock: its batches, whose exact seconds are carried from one to the next.

The engine orders events by whole microseconds. A batch starts at the exact end of the one before it or at the exact
arrival of its first request. Rounding therefore never adds up. Facts: vidur/simulator.py, vidur/events.
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import EngineContext
from blis_sim.engine.core import Engine
from blis_sim.engine.events import EventKind
from blis_sim.engine.latency.model import LatencyModel, whole_micros
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.wings.vidur.batches import BatchLog
from blis_sim.wings.vidur.rules import Batch, BatchRules, Job
from blis_sim.wings.vidur.scheduler import RunningBatch, SequenceJob, VidurScheduler
from replay.metrics_dir.tables import KVTransfer

_MOST_BLOCKS = 2**40
"""The engine refuses no request: the rules have the blocks of the replica."""


class BatchLatency(LatencyModel):
    """Times of batches in one stage, in exact seconds."""

    rounds_contexts: bool = False
    """Whether the contexts of prompts in a shape are rounded up to `KV_GRANULE` each."""

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        """Return the time of a batch in one stage; with `sends` it goes on to another stage."""
        raise NotImplementedError

    def following_decodes(self, decodes: int, context: int) -> tuple[float, float, int]:
        """Return the seconds of a batch of decodes alone, with so many tokens of context, their own included.

        Also return how much longer each batch that follows takes than the one before, and how many batches there are
        until that changes.
        """
        return self.seconds(BatchShape(decode_requests=decodes, decode_context_tokens=context - decodes)), 0.0, 1

    def step_time(self, shape: BatchShape) -> Micros:
        return whole_micros(self.seconds(shape) * 1e6)


class TimedJob(SequenceJob):
    """A request with the instants of its life, in seconds. `None` is what has not happened."""

    __slots__ = (
        "completed_at",
        "decode_arrived_at",
        "decode_replica",
        "executed_s",
        "index",
        "left_stage_at",
        "preempted_s",
        "prefilled_at",
        "queued_at",
        "replica",
        "scheduled_at",
        "transfer",
    )

    def __init__(self, index: int, arrived_at: float, prompt_tokens: int, output_tokens: int) -> None:
        Job.__init__(self, arrived_at, prompt_tokens, output_tokens, prompt_tokens + output_tokens)
        self.index = index
        self.replica = 0
        self.queued_at = arrived_at
        """When it joined the queue of its replica."""
        self.scheduled_at: float | None = None
        self.prefilled_at: float | None = None
        self.completed_at: float | None = None
        self.executed_s = self.preempted_s = 0.0
        """In batches, and between two of them."""
        self.left_stage_at = 0.0
        self.decode_replica: int | None = None
        """The replica among those that only decode; `replica` computes the prompt then."""
        self.decode_arrived_at: float | None = None
        self.transfer: KVTransfer | None = None


@dataclass(frozen=True, slots=True)
class ReplicaConfig(EngineConfig):
    """An engine that is one replica."""

    rules: BatchRules | None = None
    log: BatchLog = field(default_factory=BatchLog)
    jobs: dict[str, TimedJob] = field(default_factory=dict)
    """The requests that it was given, by id."""
    send_prompt: Callable[[TimedJob, float], None] | None = None
    """Takes each request whose prompt is computed, and when, where others decode."""


class Replica:
    """An engine with the rules, the times and the log of a replica."""

    def __init__(
        self,
        rules: BatchRules,
        latency: BatchLatency,
        *,
        keeps_members: bool = False,
        send_prompt: Callable[[TimedJob, float], None] | None = None,
    ) -> None:
        self.rules = rules
        self.log = BatchLog(rules.limits.num_stages, keeps_members=keeps_members)
        self._config = ReplicaConfig(
            _MOST_BLOCKS, engine=f"{__name__}:TimedScheduler", rules=rules, log=self.log, send_prompt=send_prompt
        )
        self.engine = Engine(self._config, latency, reports_steps=False, reports_admissions=False)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self.rules.waiting) + len(self._config.jobs)

    @property
    def num_outstanding(self) -> int:
        """Requests that have not ended."""
        return len(self.engine.live)

    def arrive(self, job: TimedJob, at_s: float) -> None:
        """Let a request join the queue."""
        job.queued_at = at_s
        name = str(job.index)
        self._config.jobs[name] = job
        self.engine.submit(Request(name, job.prompt_tokens, 1, UniqueBlocks(name), 1), micros(at_s))


class TimedScheduler(VidurScheduler):
    """Takes the batches of one replica, with as many at once as stages, before each of which is a queue."""

    def __init__(self, context: EngineContext, reports_steps: bool) -> None:
        config, latency = context.config, context.latency
        assert isinstance(config, ReplicaConfig)
        assert config.rules is not None
        assert isinstance(latency, BatchLatency)
        super().__init__(context, reports_steps, config.rules)
        self._replica, self._times = config, latency
        self._num_stages = config.rules.limits.num_stages
        self._now_s = 0.0
        self._free_at = [0.0] * self._num_stages
        """When the latest batch leaves each stage."""
        self._wakes: dict[Micros, float] = {}
        """Instants at which KV caches arrive for requests that wait already."""

    def enqueue(self, sequence: Sequence, at: Micros) -> None:
        job = self._replica.jobs.pop(sequence.request.id)
        job.sequence = sequence
        self._jobs[sequence] = job
        self.rules.add(job)
        wakes_at = job.decode_arrived_at
        if wakes_at is not None and wakes_at > job.queued_at:
            self._wakes[micros(wakes_at)] = wakes_at
            self._context.queue.push(micros(wakes_at), EventKind.STEP)
        else:
            self._plan(at)

    def step(self, at: Micros) -> None:
        wakes_at = self._wakes.pop(at, 0.0)
        if len(self._running) < self._num_stages:
            self._now_s = max(self._now_s, wakes_at)
            super().step(at)

    def _compose(self, at: Micros) -> Batch | None:
        """Compose a batch of the requests that are there at the exact instant, or when the next one comes."""
        waiting = cast("deque[TimedJob]", self.rules.waiting)
        if not waiting or waiting[-1].queued_at <= self._now_s:
            return super()._compose(at)
        held = deque[TimedJob]()
        while waiting and waiting[-1].queued_at > self._now_s:
            held.appendleft(waiting.pop())
        batch = super()._compose(at)
        while batch is None and held:
            self._now_s = held[0].queued_at
            while held and held[0].queued_at == self._now_s:
                self.rules.waiting.append(held.popleft())
            batch = super()._compose(at)
        self.rules.waiting.extend(held)
        return batch

    def _begin(self, batch: Batch, at: Micros) -> RunningBatch:
        start = self._now_s
        log, jobs = self._replica.log, cast("list[TimedJob]", batch.jobs)
        shape = batch.shape(rounds_contexts=self._times.rounds_contexts)
        num_blocks, starts = self.rules.blocks.num_used_blocks, array("d", (start,))
        log.set_held_blocks(start, num_blocks)
        for job in jobs:
            if job.scheduled_at is None:
                job.scheduled_at = start
        if self._num_stages > 1:
            end = self._pass_stages(shape, jobs, start)
        else:
            seconds = self._times.seconds(shape)
            end = start + seconds
            if not batch.num_prefill_tokens and (more := self.rules.num_equal_batches(batch)):
                end, repeated = self._repeat(batch, more, end, starts)
                seconds += repeated
                if (count := len(starts) - 1) > 0:
                    held = self.rules.repeat(batch, count)
                    last = self.rules.blocks.num_used_blocks
                    log.add_rising_blocks(starts[-1], num_blocks, count, held, last)
            _compute(jobs, start, seconds, end)
        log.add(shape, ([job.index for job in jobs], batch.tokens), starts, end)
        return RunningBatch(batch, len(log) - 1, micros(end), shape, [])

    def _pass_stages(self, shape: BatchShape, jobs: list[TimedJob], at: float) -> float:
        """Let a batch pass all stages. Returns when it leaves the last one."""
        for stage, (starts, ends) in enumerate(self._replica.log.stages):
            start = max(at, self._free_at[stage])
            seconds = self._times.seconds(shape, stage < self._num_stages - 1)
            at = self._free_at[stage] = start + seconds
            starts.append(start)
            ends.append(at)
            _compute(jobs, start, seconds, at)
        return at

    def _repeat(self, batch: Batch, most: int, at: float, starts: "array[float]") -> tuple[float, float]:
        """Take up to `most` batches equal to `batch` from `at` on, as long as nothing else is due.

        Returns the end of the last one and the sum of their seconds.
        """
        decodes, context, total = batch.decodes, batch.decode_context_tokens, 0.0
        last, start = (self._last_free_instant() + 0.5) / 1e6, starts.append
        while most and at < last:
            seconds, slope, number = self._times.following_decodes(decodes, context + decodes)
            number = min(number, most)
            most -= number
            context += decodes * number
            for _ in range(number):
                start(at)
                at += seconds
                total += seconds
                seconds += slope
                if at >= last:
                    return at, total
        return at, total

    def _end(self, running: RunningBatch, at: Micros) -> None:
        batch, replica = running.batch, self._replica
        end = replica.log.ends[running.index]
        self._now_s = max(self._now_s, end)
        complete = self.rules.end(batch)
        if batch.num_prefill_tokens:
            for job in cast("list[TimedJob]", batch.jobs):
                if job.is_prefilled and job.prefilled_at is None:
                    job.prefilled_at = end
        for job in cast("list[TimedJob]", complete):
            job.completed_at = end
            self._leave(job, at)
        if replica.send_prompt is not None:
            for job in cast("list[TimedJob]", self.rules.take_ready()):
                self.rules.free(job)
                self._leave(job, at)
                replica.send_prompt(job, end)
        replica.log.set_held_blocks(end, self.rules.blocks.num_used_blocks)

    def _leave(self, job: TimedJob, at: Micros) -> None:
        job.sequence.num_output_tokens = job.sequence.output_tokens
        self._complete(job.sequence, at)


def _compute(jobs: list[TimedJob], start: float, seconds: float, end: float) -> None:
    """Note that a stage computed requests for so many seconds."""
    for job in jobs:
        if job.left_stage_at != 0:
            job.preempted_s += start - job.left_stage_at
        job.executed_s += seconds
        job.left_stage_at = end


def micros(seconds: float) -> Micros:
    """Return the closest whole number of microseconds."""
    return round(seconds * 1e6)
