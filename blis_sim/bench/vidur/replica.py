"""Replicas on a clock of floating-point seconds, added up as Vidur does: with one pipeline stage, and with several.

Two runs of equal additions in equal order give equal sums to the last bit, which whole microseconds cannot. With
several stages there is a queue before each, and as many batches run as there are stages. Events of one instant happen
in the order in which they were planned, arrivals first, as in Vidur. Facts: vidur/simulator.py, vidur/events.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from blis_sim.bench.vidur.batches import BatchLog
from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job
from replay.metrics_dir.tables import KVTransfer

BatchTime = Callable[[Batch, bool], float]
"""The seconds of a batch in one stage, and whether it goes on to another one."""
DecodeTimes = Callable[[int, int], tuple[float, float, int]]
"""From a number of decodes and their context, their own tokens included, to the seconds of a batch of them, what each
batch that follows takes longer than the one before, and how many batches there are until that changes."""


class TimedJob(Job):
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
        "replica",
        "scheduled_at",
        "transfer",
    )

    def __init__(self, index: int, arrived_at: float, prompt_tokens: int, output_tokens: int) -> None:
        super().__init__(arrived_at, prompt_tokens, output_tokens, prompt_tokens + output_tokens)
        self.index = index
        self.replica = 0
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


class Replica:
    """A replica with one pipeline stage; each batch is composed when the batch before ends."""

    def __init__(
        self, rules: BatchRules, time: BatchTime, decode_times: DecodeTimes, *, keeps_members: bool = False
    ) -> None:
        self.rules = rules
        self.log = BatchLog(keeps_members=keeps_members)
        self._time = time
        self._decode_times = decode_times
        self._batch: Batch | None = None
        self._ends_at = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self.rules.waiting)

    @property
    def num_outstanding(self) -> int:
        """Requests that have not ended."""
        running = len(self._batch.jobs) if self._batch is not None else 0
        return len(self.rules.waiting) + self.rules.num_ready + running

    def advance(self, until: float) -> None:
        """Take all batches that begin before `until`; the last one may end later."""
        while self._batch is not None and self._ends_at < until:
            self._end(self._batch, self._ends_at)
            self._begin(self._ends_at, until)

    def arrive(self, job: TimedJob) -> None:
        """Add a request to the queue; `wake` may then start a batch with it."""
        self.rules.add(job)

    def wake(self, at: float, until: float) -> None:
        """Compose a batch if none runs, and go on with those that begin before `until`."""
        if self._batch is None:
            self._begin(at, until)

    def note_unfinished(self) -> None:
        """Note the batch of the log that had not ended when the simulation did."""
        if self._batch is not None:
            self.log.unfinished.append(len(self.log) - 1)

    def _begin(self, at: float, until: float) -> None:
        """Compose a batch at `at`, and take those that are equal to it, as far as they begin before `until`."""
        rules = self.rules
        self._batch = batch = rules.compose()
        if batch is None:
            return
        blocks = rules.blocks
        num_blocks = blocks.num_used_blocks
        self.log.set_held_blocks(at, num_blocks)
        seconds = self._time(batch, False)
        ends_at = at + seconds
        starts = array("d", (at,))
        first_at, total = at, seconds
        if not batch.prefills and ends_at < until and (more := rules.num_equal_batches(batch)):
            ends_at, repeated = self._repeat(batch, more, ends_at, until, starts)
            total += repeated
            count = len(starts) - 1
            held = rules.repeat(batch, count)
            self.log.add_rising_blocks(starts[-1], num_blocks, count, held, blocks.num_used_blocks)
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            if job.scheduled_at is None:
                job.scheduled_at = first_at
            if job.left_stage_at != 0:
                job.preempted_s += first_at - job.left_stage_at
            job.executed_s += total
        self.log.add(batch, starts, ends_at)
        self._ends_at = ends_at

    def _repeat(self, batch: Batch, most: int, at: float, until: float, starts: "array[float]") -> tuple[float, float]:
        """Take up to `most` batches equal to `batch` from `at` on, each of which begins before `until`.

        Returns the end of the last one and the sum of their seconds.
        """
        decodes, context, total = batch.decodes, batch.decode_context_tokens, 0.0
        start = starts.append
        while most and at < until:
            seconds, slope, number = self._decode_times(decodes, context + decodes)
            number = min(number, most)
            most -= number
            context += decodes * number
            for _ in range(number):
                start(at)
                at += seconds
                total += seconds
                seconds += slope
                if at >= until:
                    return at, total
        return at, total

    def _end(self, batch: Batch, at: float) -> None:
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            job.left_stage_at = at
        end_batch(self.rules, batch, at)
        self.log.set_held_blocks(at, self.rules.blocks.num_used_blocks)


def end_batch(rules: BatchRules, batch: Batch, at: float) -> None:
    """Note the progress of requests at the end of their batch."""
    for job in rules.end(batch):
        assert isinstance(job, TimedJob)
        job.completed_at = at
    if batch.prefills:
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            if job.is_prefilled and job.prefilled_at is None:
                job.prefilled_at = at


Event = tuple[float, int, Callable[[float], None]]
Entry = tuple[Batch, int]
"""A batch and its place in the log."""


class EventQueue:
    """Planned events in the order of their instants."""

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._numbers = count()

    def plan(self, at: float, action: Callable[[float], None]) -> None:
        """Plan an action at `at`, after all that was planned for that instant before."""
        heappush(self._heap, (at, next(self._numbers), action))

    def run(self, limit: float = math.inf) -> None:
        """Run all planned actions up to `limit`, and those that they plan."""
        heap = self._heap
        heapify(heap)
        while heap and heap[0][0] <= limit:
            at, _, action = heappop(heap)
            action(at)


class StagedReplica:
    """Batches that go through all stages one after the other."""

    def __init__(
        self,
        rules: BatchRules,
        time: BatchTime,
        event_queue: EventQueue,
        num_stages: int,
        *,
        keeps_members: bool = False,
    ) -> None:
        self.rules = rules
        self.log = BatchLog(num_stages, keeps_members=keeps_members)
        self._time = time
        self._event_queue = event_queue
        self._queues: list[deque[Entry]] = [deque() for _ in range(num_stages)]
        """Batches in front of each stage, with their places in the log."""
        self._is_busy = [False] * num_stages
        self._running: dict[int, Batch] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self.rules.waiting)

    @property
    def num_outstanding(self) -> int:
        """Requests that have not ended."""
        running = sum(len(batch.jobs) for batch in self._running.values())
        return len(self.rules.waiting) + self.rules.num_ready + running

    def arrive(self, job: TimedJob) -> None:
        """Add a request to the queue; `schedule` may then start a batch with it."""
        self.rules.add(job)

    def schedule(self, at: float) -> None:
        """Compose batches until as many run as there are stages."""
        composed: list[Entry] = []
        while len(self._running) < len(self._queues) and (batch := self.rules.compose()) is not None:
            place = len(self.log)
            self._running[place] = batch
            for job in batch.jobs:
                assert isinstance(job, TimedJob)
                if job.scheduled_at is None:
                    job.scheduled_at = at
            self.log.add(batch, array("d", (at,)), at)
            composed.append((batch, place))
        if composed:
            self.log.set_held_blocks(at, self.rules.blocks.num_used_blocks)
        for each in composed:
            self._plan_arrival(at, 0, each)

    def note_unfinished(self) -> None:
        """Note which batches of the log had not ended when the simulation did."""
        self.log.unfinished.extend(self._running)

    def _plan_arrival(self, at: float, stage: int, entry: Entry) -> None:
        def arrive(now: float) -> None:
            self._queues[stage].append(entry)
            self._event_queue.plan(now, lambda then: self._start(then, stage))

        self._event_queue.plan(at, arrive)

    def _start(self, at: float, stage: int) -> None:
        """Start the first batch in the queue of a stage, if the stage is free."""
        if self._is_busy[stage] or not self._queues[stage]:
            return
        self._is_busy[stage] = True
        entry = self._queues[stage].popleft()
        batch = entry[0]
        seconds = self._time(batch, stage < len(self._queues) - 1)
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            if job.left_stage_at != 0:
                job.preempted_s += at - job.left_stage_at
        self._event_queue.plan(at + seconds, lambda then: self._leave(then, stage, entry, at, seconds))

    def _leave(self, at: float, stage: int, entry: Entry, started_at: float, seconds: float) -> None:
        self._is_busy[stage] = False
        if self.log.stages:
            passages = self.log.stages[stage]
            passages.starts.append(started_at)
            passages.ends.append(at)
        for job in entry[0].jobs:
            assert isinstance(job, TimedJob)
            job.executed_s += seconds
            job.left_stage_at = at
        self._event_queue.plan(at, lambda then: self._start(then, stage))
        if stage < len(self._queues) - 1:
            self._plan_arrival(at, stage + 1, entry)
        else:
            self._event_queue.plan(at, lambda then: self._end(then, entry))

    def _end(self, at: float, entry: Entry) -> None:
        batch, place = entry
        del self._running[place]
        self.log.ends[place] = at
        end_batch(self.rules, batch, at)
        self.log.set_held_blocks(at, self.rules.blocks.num_used_blocks)
        self._event_queue.plan(at, self.schedule)


def run_staged(
    replicas: Sequence[StagedReplica],
    event_queue: EventQueue,
    jobs: Sequence[TimedJob],
    choose: Callable[[TimedJob], int],
    limit: float = math.inf,
) -> None:
    """Let `jobs` arrive, each at the replica that `choose` returns at that instant, and simulate to `limit`."""
    pending: list[TimedJob] = []

    def dispatch(at: float) -> None:
        pending.sort(key=lambda job: job.arrived_at)
        chosen = set()
        for job in pending:
            job.replica = choose(job)
            replicas[job.replica].arrive(job)
            chosen.add(job.replica)
        pending.clear()
        for number in sorted(chosen):
            event_queue.plan(at, replicas[number].schedule)

    def arrival_of(job: TimedJob) -> Callable[[float], None]:
        def arrive(at: float) -> None:
            pending.append(job)
            event_queue.plan(at, dispatch)

        return arrive

    for job in jobs:
        event_queue.plan(job.arrived_at, arrival_of(job))
    event_queue.run(limit)
    for replica in replicas:
        replica.note_unfinished()
