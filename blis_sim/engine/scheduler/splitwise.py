"""Splitwise's rules for instances that only compute prompts, and for those that only decode.

An instance of the first kind is done with a request when its prompt is computed; one of the second gets requests whose
prompts have come from elsewhere. Facts: vidur/scheduler/replica_scheduler/splitwise_replica_scheduler.py of SimAI.
"""

from typing import ClassVar

from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job


class SplitwiseRules(BatchRules):
    """Decodes first, then whole prompts of so many tokens together, with blocks reserved for the longest request."""

    takes_blocks: ClassVar[bool] = False

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        most = self.limits.max_full_batch
        jobs, self.ready = self.ready[:most], self.ready[most:]
        tokens = [job.left for job in jobs]
        num_prompt_tokens = 0
        while self.waiting and self._joins(self.waiting[0], len(jobs), num_prompt_tokens):
            job = self.waiting.popleft()
            self.reserve(job, self.limits.blocks_of_longest)
            self.started.append(job)
            jobs.append(job)
            tokens.append(job.left)
            num_prompt_tokens += 0 if job.is_prefilled else job.left
        return Batch(jobs, tokens) if jobs else None

    def may_join(self, num_requests: int) -> bool:
        return self._joins(self.waiting[0], num_requests, 0)

    def _joins(self, job: Job, num_requests: int, num_prompt_tokens: int) -> bool:
        limits = self.limits
        if self.blocks.num_free < limits.blocks_of_longest:
            return False
        if job.is_prefilled:
            return num_requests < limits.max_full_batch
        if self.num_allocated == limits.max_num_seqs or num_requests == limits.max_micro_batch:
            return False
        is_short = num_prompt_tokens + job.left <= limits.max_num_batched_tokens
        # In the original a prompt that is longer by itself blocks the queue for ever.
        return is_short or not (num_prompt_tokens or limits.is_original)
