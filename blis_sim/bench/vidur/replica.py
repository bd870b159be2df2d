"""A replica with one pipeline stage on a clock of floating-point seconds, which adds up times as Vidur does.

Two runs of equal additions in equal order give equal sums to the last bit, which whole microseconds cannot.
"""

from array import array
from collections.abc import Callable

from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job

BatchTime = Callable[[Batch, bool], float]
"""The seconds of a batch in one stage, and whether it goes on to another one."""


class TimedJob(Job):
    """A request with the instants of its life, in seconds. `None` is what has not happened."""

    __slots__ = (
        "completed_at",
        "executed_s",
        "index",
        "left_stage_at",
        "preempted_s",
        "prefilled_at",
        "replica",
        "scheduled_at",
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


class BatchLog:
    """The batches of one replica in the order in which they were composed."""

    __slots__ = ("decodes", "durations", "prefill_tokens", "sizes", "starts")

    def __init__(self) -> None:
        self.starts = array("d")
        self.durations = array("d")
        self.sizes = array("i")
        self.decodes = array("i")
        self.prefill_tokens = array("i")

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, batch: Batch, starts: "array[float]", durations: "array[float]") -> None:
        """Add so many equal batches."""
        count = len(starts)
        self.starts.extend(starts)
        self.durations.extend(durations)
        self.sizes.extend([len(batch.jobs)] * count)
        self.decodes.extend([batch.decodes] * count)
        self.prefill_tokens.extend([batch.num_prefill_tokens] * count)


class Replica:
    """Takes batches one after the other; each is composed when the one before ends."""

    def __init__(self, rules: BatchRules, time: BatchTime, decode_time: Callable[[int, int], float]) -> None:
        self.rules = rules
        self.log = BatchLog()
        self._time = time
        self._decode_time = decode_time
        """Time of so many decodes with so many tokens of context, their own included."""
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

    def _begin(self, at: float, until: float) -> None:
        """Compose a batch at `at`, and take those that are equal to it, as far as they begin before `until`."""
        rules = self.rules
        self._batch = batch = rules.compose()
        if batch is None:
            return
        seconds = self._time(batch, False)
        ends_at = at + seconds
        starts, durations = array("d", (at,)), array("d", (ends_at - at,))
        first_at, total = at, seconds
        if not batch.prefills and ends_at < until and (more := rules.num_equal_batches(batch)):
            decodes, context, decode_time = batch.decodes, batch.decode_context_tokens, self._decode_time
            count = 0
            while count < more and ends_at < until:
                count += 1
                context += decodes
                seconds = decode_time(decodes, context)
                at = ends_at
                ends_at = at + seconds
                total += seconds
                starts.append(at)
                durations.append(ends_at - at)
            rules.repeat(batch, count)
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            if job.scheduled_at is None:
                job.scheduled_at = first_at
            if job.left_stage_at != 0:
                job.preempted_s += first_at - job.left_stage_at
            job.executed_s += total
        self.log.add(batch, starts, durations)
        self._ends_at = ends_at

    def _end(self, batch: Batch, at: float) -> None:
        for job in batch.jobs:
            assert isinstance(job, TimedJob)
            job.left_stage_at = at
        end_batch(self.rules, batch, at)


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
