"""Replicas with several pipeline stages, event by event: a queue before each stage, as many batches running as stages.

Events of one instant happen in the order in which they were planned, arrivals first, as in Vidur.
Facts: vidur/simulator.py, vidur/events.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from blis_sim.bench.vidur.batch_log import BatchLog
from blis_sim.bench.vidur.replica import BatchTime, TimedJob, end_batch
from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules

Event = tuple[float, int, Callable[[float], None]]
Entry = tuple[Batch, int]
"""A batch and its place in the log."""


class Clockwork:
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
        clockwork: Clockwork,
        num_stages: int,
        *,
        keeps_members: bool = False,
    ) -> None:
        self.rules = rules
        self.log = BatchLog(num_stages, keeps_members=keeps_members)
        self._time = time
        self._clockwork = clockwork
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
        """Let a request wait; `schedule` lets a batch begin with it."""
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
            self.log.hold(at, self.rules.blocks.num_used_blocks)
        for each in composed:
            self._plan_arrival(at, 0, each)

    def note_unfinished(self) -> None:
        """Note which batches of the log had not ended when the simulation did."""
        self.log.unfinished.extend(self._running)

    def _plan_arrival(self, at: float, stage: int, entry: Entry) -> None:
        def arrive(now: float) -> None:
            self._queues[stage].append(entry)
            self._clockwork.plan(now, lambda then: self._start(then, stage))

        self._clockwork.plan(at, arrive)

    def _start(self, at: float, stage: int) -> None:
        """Let the first batch before a stage enter it, if it is free."""
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
        self._clockwork.plan(at + seconds, lambda then: self._leave(then, stage, entry, at, seconds))

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
        self._clockwork.plan(at, lambda then: self._start(then, stage))
        if stage < len(self._queues) - 1:
            self._plan_arrival(at, stage + 1, entry)
        else:
            self._clockwork.plan(at, lambda then: self._end(then, entry))

    def _end(self, at: float, entry: Entry) -> None:
        batch, place = entry
        del self._running[place]
        self.log.ends[place] = at
        end_batch(self.rules, batch, at)
        self.log.hold(at, self.rules.blocks.num_used_blocks)
        self._clockwork.plan(at, self.schedule)


def run_staged(
    replicas: Sequence[StagedReplica],
    clockwork: Clockwork,
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
            clockwork.plan(at, replicas[number].schedule)

    def arrival_of(job: TimedJob) -> Callable[[float], None]:
        def arrive(at: float) -> None:
            pending.append(job)
            clockwork.plan(at, dispatch)

        return arrive

    for job in jobs:
        clockwork.plan(job.arrived_at, arrival_of(job))
    clockwork.run(limit)
    for replica in replicas:
        replica.note_unfinished()
