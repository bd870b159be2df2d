"""Orca's rules: whole prompts and decodes in one batch, with KV blocks reserved for the longest request there may be.

Facts: vidur/scheduler/replica_scheduler/orca_replica_scheduler.py.
"""

from typing import ClassVar

from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules


class OrcaRules(BatchRules):
    """Iteration-level scheduling: requests join and leave between any two batches, and are never preempted."""

    takes_blocks: ClassVar[bool] = False

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        most = self.limits.max_full_batch
        jobs, self.ready = self.ready[:most], self.ready[most:]
        tokens = [job.left for job in jobs]
        while self.waiting and self.may_join(len(jobs)):
            job = self.waiting.popleft()
            self.reserve(job, self.limits.blocks_of_longest)
            self.started.append(job)
            jobs.append(job)
            tokens.append(job.left)
        return Batch(jobs, tokens) if jobs else None

    def may_join(self, num_requests: int) -> bool:
        return num_requests < self.limits.max_full_batch and self.blocks.num_free >= self.limits.blocks_of_longest
