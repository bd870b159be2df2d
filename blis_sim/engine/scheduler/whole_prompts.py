"""Rules of Vidur's schedulers whose batches take whole prompts: early vLLM, Orca and Splitwise.

An instance of Splitwise's first kind is done with a request when its prompt is computed; one of the second gets
requests whose prompts have come from elsewhere. Facts: vidur/scheduler/replica_scheduler, vllm_replica_scheduler.py
and orca_replica_scheduler.py, and splitwise_replica_scheduler.py of SimAI.
"""

from typing import ClassVar

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


class OrcaRules(BatchRules):
    """Iteration-level scheduling: requests join and leave between any two batches, and are never preempted."""

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
        return num_requests < self.limits.max_full_batch and self.blocks.num_free >= self.limits.blocks_of_longest

    def _joins(self, job: Job, num_requests: int, num_prompt_tokens: int) -> bool:
        """Whether a waiting request joins a batch with so many requests, and so many tokens of prompts."""
        return self.may_join(num_requests)


class SplitwiseRules(OrcaRules):
    """Decodes first, then whole prompts up to a limit of tokens, with blocks reserved for the longest request."""

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
