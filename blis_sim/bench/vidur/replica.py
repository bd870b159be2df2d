"""A replica with one pipeline stage on a clock of floating-point seconds, which adds up times as Vidur does.

Two runs of equal additions in equal order give equal sums to the last bit, which whole microseconds cannot.
"""

from array import array
from collections.abc import Callable

from blis_sim.bench.vidur.batch_log import BatchLog
from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job
from replay.metrics_dir.request_rows import KVTransfer

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
    """Takes batches one after the other; each is composed when the one before ends."""

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
        """Let a request wait. `wake` lets a batch begin with it."""
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
        self.log.hold(at, num_blocks)
        seconds = self._time(batch, False)
        ends_at = at + seconds
        starts = array("d", (at,))
        first_at, total = at, seconds
        if not batch.prefills and ends_at < until and (more := rules.num_equal_batches(batch)):
            ends_at, repeated = self._repeat(batch, more, ends_at, until, starts)
            total += repeated
            count = len(starts) - 1
            held = rules.repeat(batch, count)
            self.log.hold_rising(starts[-1], num_blocks, count, held, blocks.num_used_blocks)
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
        self.log.hold(at, self.rules.blocks.num_used_blocks)


def end_batch(rules: BatchRules, batch: Batch, at: float) -> None:
    """Note what the end of a batch brings its requests."""
    for job in rules.end(batch):
        assert isinstance(job, TimedJob)
        job.completed_at = at
    if batch.prefills:
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            if job.is_prefilled and job.prefilled_at is None:
                job.prefilled_at = at
