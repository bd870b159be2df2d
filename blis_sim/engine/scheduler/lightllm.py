"""LightLLM's rules: prompts join between decodes, if the tokens of all requests fit at every moment to come.

Facts: vidur/scheduler/replica_scheduler/lightllm_replica_scheduler.py.
"""

from blis_sim.engine.scheduler.batch_rules import Batch, BatchLimits, BatchRules, Job


class LightLLMRules(BatchRules):
    """Batches of whole prompts, separated by batches of decodes. Blocks hold one token."""

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits)
        self._num_waited = 0
        """Batches of decodes since prompts were last considered."""

    def compose(self) -> Batch | None:
        self.started, self.restarted = [], []
        if not self.ready:
            batch = self._prompts()
            if batch is not None:
                self._num_waited = 0
            return batch
        if self._num_waited >= self.limits.max_waiting_iterations:
            self._num_waited = 0
            batch = self._prompts()
            if batch is not None:
                return batch
        self._num_waited += 1
        return self._decodes()

    def may_join(self, num_requests: int) -> bool:
        return self._num_waited >= self.limits.max_waiting_iterations

    def num_equal_batches(self, batch: Batch) -> int:
        more = super().num_equal_batches(batch)
        return min(more, self.limits.max_waiting_iterations - self._num_waited) if self.waiting else more

    def repeat(self, batch: Batch, count: int) -> int:
        held = super().repeat(batch, count)
        self._num_waited = (self._num_waited - 1 + count) % self.limits.max_waiting_iterations + 1
        return held

    def _prompts(self) -> Batch | None:
        limits, jobs, num_tokens = self.limits, list[Job](), 0
        futures = [self._future(job) for job in self.ready]
        while self.waiting and self.num_allocated < limits.max_num_seqs:
            job = self.waiting[0]
            num_tokens += job.left
            if num_tokens > limits.max_num_batched_tokens and (jobs or limits.is_original):
                break
            futures.append(self._future(job))
            is_alone = not self.num_allocated and not limits.is_original
            if self.blocks.num_free < job.target or not (is_alone or _fits_until_complete(futures, limits.num_blocks)):
                break
            self.waiting.popleft()
            self.reserve(job, job.target)
            self.started.append(job)
            jobs.append(job)
        return Batch(jobs, [job.left for job in jobs]) if jobs else None

    def _decodes(self) -> Batch | None:
        jobs: list[Job] = []
        ready, most = self.ready, self.limits.max_micro_batch
        while ready and len(jobs) < most:
            job = ready.pop(0)
            if self.grow(job, ready):
                jobs.append(job)
        return Batch(jobs, [1] * len(jobs)) if jobs else None

    def _future(self, job: Job) -> tuple[int, int]:
        """Return the decodes that a request has to go, and the tokens that it holds now.

        The original uses the true length of the output, which no engine can: the declared one counts here.
        """
        total = job.total_tokens if self.limits.is_original else job.most_tokens
        if job.is_prefilled:
            return max(0, total - job.processed - 1), job.processed
        return max(0, total - job.target - 2), job.target + 1


def _fits_until_complete(futures: list[tuple[int, int]], num_tokens: int) -> bool:
    """Whether requests fit until each is complete, if the one with the most decodes to go holds its tokens longest."""
    held = 0
    for place, (to_go, tokens) in enumerate(sorted(futures, reverse=True), 1):
        held += tokens
        if to_go * place + held >= num_tokens:
            return False
    return True
