"""The rules of early vLLM as Vidur has them: batches of whole prompts, before all else; then batches of decodes.

Facts: vidur/scheduler/replica_scheduler/vllm_replica_scheduler.py.
"""

from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job, arrival_of


class VidurVllmRules(BatchRules):
    """Prompts are padded to the longest of their batch, so it counts as their number times its tokens."""

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        jobs: list[Job] = []
        longest = 0
        while self.waiting and self._joins(self.waiting[0], len(jobs), longest):
            job = self.waiting.popleft()
            self.reserve(job, -(-job.target // self.limits.block_size_tokens))
            self.started.append(job)
            jobs.append(job)
            longest = max(longest, job.left)
        if jobs:
            return Batch(jobs, [job.left for job in jobs])
        return self._decodes()

    def may_join(self, num_requests: int) -> bool:
        return self._joins(self.waiting[0], 0, 0)

    def _joins(self, job: Job, num_prompts: int, longest: int) -> bool:
        limits = self.limits
        padded = (num_prompts + 1) * max(longest, job.left)
        if padded > limits.max_num_batched_tokens and (num_prompts or limits.is_original):
            return False  # In the original a prompt that is longer by itself blocks the queue for ever.
        if self.num_allocated == limits.max_num_seqs or num_prompts == limits.max_micro_batch:
            return False
        return self.fits(job)

    def _decodes(self) -> Batch | None:
        jobs: list[Job] = []
        ready = self.ready = sorted(self.ready, key=arrival_of)
        most = self.limits.max_micro_batch
        while ready and len(jobs) < most:
            job = ready.pop(0)
            if self.grow(job, ready):
                jobs.append(job)
        return Batch(jobs, [1] * len(jobs)) if jobs else None
