"""Sarathi-Serve's rules: decodes first, then chunks of prompts, within a limit of tokens per batch.

Facts: vidur/scheduler/replica_scheduler/sarathi_replica_scheduler.py.
"""

from blis_sim.engine.scheduler.batch_rules import Batch, BatchRules, Job, arrival_of


class SarathiRules(BatchRules):
    """Stall-free batches: a prompt takes what decodes leave of the chunk size, which is `max_num_batched_tokens`."""

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        jobs: list[Job] = []
        tokens: list[int] = []
        most, chunk = self.limits.max_micro_batch, self.limits.max_num_batched_tokens
        prefilling = self._decode(jobs, tokens) if self.ready else []
        num_tokens = len(jobs)
        skipped: list[Job] = []
        for job in prefilling:
            count = min(job.left, chunk - num_tokens)
            # The original lets chunks go beyond the limit of requests, which the chunk size then bounds.
            if count <= 0 or (len(jobs) >= most and not self.limits.is_original):
                skipped.append(job)
                continue
            jobs.append(job)
            tokens.append(count)
            num_tokens += count
        if skipped or self.ready:
            self.ready = sorted(skipped + self.ready, key=arrival_of)
        waiting = self.waiting
        while waiting and num_tokens < chunk and self._has_room(len(jobs)) and self.fits(waiting[0]):
            job = waiting.popleft()
            count = min(job.left, chunk - num_tokens)
            self.reserve(job, -(-job.target // self.limits.block_size_tokens))
            self.started.append(job)
            jobs.append(job)
            tokens.append(count)
            num_tokens += count
        return Batch(jobs, tokens) if jobs else None

    def may_join(self, num_requests: int) -> bool:
        return (
            num_requests < self.limits.max_num_batched_tokens
            and self._has_room(num_requests)
            and self.fits(self.waiting[0])
        )

    def _has_room(self, num_requests: int) -> bool:
        return self.num_allocated != self.limits.max_num_seqs and num_requests < self.limits.max_micro_batch

    def _decode(self, jobs: list[Job], tokens: list[int]) -> list[Job]:
        """Let requests decode in the order in which they stand. Returns those whose prompts are not complete."""
        most, prefilling = self.limits.max_micro_batch, []
        ready = self.ready
        if self.blocks.num_free > len(ready) <= most:  # the usual case: a block for each, and room for all
            self.ready = []
            for job in ready:
                if job.is_prefilled:
                    self.grow(job, self.ready)
                    jobs.append(job)
                    tokens.append(1)
                else:
                    prefilling.append(job)
            return prefilling
        while ready and len(jobs) < most:
            job = ready.pop(0)
            if not job.is_prefilled:
                prefilling.append(job)
            elif self.grow(job, ready):
                jobs.append(job)
                tokens.append(1)
        return prefilling
