"""FasterTransformer's rules: static batches, which go on until the last of their requests is complete.

Facts: vidur/scheduler/replica_scheduler/faster_transformer_replica_scheduler.py.
"""

from collections import deque
from typing import ClassVar

from blis_sim.engine.scheduler.batch_rules import Batch, BatchLimits, BatchRules, Job


class FasterTransformerRules(BatchRules):
    """A batch is computed again without the requests that are complete; each has its longest length reserved.

    In the original, blocks of requests that complete before the others of their batch are never freed.
    """

    takes_blocks: ClassVar[bool] = False

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits)
        self._batches: deque[list[Job]] = deque()
        """The requests of batches between two computations."""

    @property
    def num_ready(self) -> int:
        return sum(map(len, self._batches))

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        if self._batches:
            jobs = self._batches.popleft()
            return Batch(jobs, [job.left for job in jobs])
        jobs = []
        most, reserved = self.limits.max_full_batch, self.limits.blocks_of_longest
        while self.waiting and len(jobs) < most and self.blocks.num_free >= reserved:
            job = self.waiting.popleft()
            self.reserve(job, reserved)
            self.started.append(job)
            jobs.append(job)
        return Batch(jobs, [job.left for job in jobs]) if jobs else None

    def may_join(self, num_requests: int) -> bool:
        return False

    def end(self, batch: Batch) -> list[Job]:
        complete = super().end(batch)
        if self.ready:
            self._batches.append(self.ready)
            self.ready = []
            if self.limits.is_original:
                self.blocks.take(len(complete) * self.limits.blocks_of_longest)
                self.num_allocated += len(complete)
        return complete

    def drop(self, job: Job) -> None:
        for jobs in self._batches:
            if job in jobs:
                jobs.remove(job)
        self._batches = deque(jobs for jobs in self._batches if jobs)
        super().drop(job)

    def take_ready(self) -> list[Job]:
        jobs = [job for jobs in self._batches for job in jobs]
        self._batches.clear()
        return jobs
