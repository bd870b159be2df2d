"""The rules of Vidur's and SimAI's schedulers, which compose one batch after the other from requests and KV blocks.

A set of rules decides in `compose` which requests get how many tokens; its scheduler decides when a batch ends. A
request is processed to its first output token when its prompt is, as the batch that ends the prompt brings that token.
Facts: vidur/scheduler/replica_scheduler, vidur/entities/request.py.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, KeysView, Mapping
from dataclasses import dataclass
from typing import ClassVar

from blis_sim.engine.batch_shape import BatchShape


class EmptyIndex:
    """The content of a cache in which nothing can be found again."""

    def identities(self) -> KeysView[object]:
        return dict[object, None]().keys()

    def identities_now(self) -> Container[object]:
        return ()


class BlockCounts:
    """`num_blocks` blocks of `block_size_tokens` tokens, each free or held by one request."""

    __slots__ = ("block_size_tokens", "hit_tokens", "index", "num_blocks", "num_free", "queried_tokens")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.block_size_tokens = block_size_tokens
        self.index = EmptyIndex()
        self.hit_tokens = self.queried_tokens = 0

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough."""
        self.num_free -= num_blocks
        assert self.num_free >= 0, "more blocks were taken than there are"

    def give_back(self, num_blocks: int) -> None:
        """Let blocks be free again."""
        self.num_free += num_blocks

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        assert 0 <= self.num_free <= self.num_blocks

    def forget(self) -> bool:
        """Empty the prefix cache, which holds nothing anyway. Returns False while any block is held."""
        return self.num_free == self.num_blocks


KV_GRANULE = 64
"""Vidur rounds the context of a prompt up to a multiple of this, as its tables have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits within which batches are composed."""

    num_blocks: int
    block_size_tokens: int
    max_num_seqs: int
    """Requests that hold KV blocks at once."""
    max_num_batched_tokens: int
    """Tokens of a batch, as the rules count them."""
    max_model_len: int
    """Most tokens of prompt and output together."""
    num_stages: int = 1
    """Pipeline stages: as many batches run at once."""
    max_full_length_seqs: int | None = None
    """Requests of the longest length that fit at once; None counts the blocks."""
    watermark_fraction: float = 0.01
    """Share of the KV blocks that the admission of a request leaves free."""
    max_waiting_iterations: int = 10
    """Decode batches between two attempts to admit requests. For LightLLM's rules only."""
    is_original: bool = False
    """Whether rules have Vidur's errors, too."""

    @property
    def blocks_of_longest(self) -> int:
        """KV blocks of a request of the longest length. Vidur rounds them down."""
        if self.is_original:
            return self.max_model_len // self.block_size_tokens
        return -(-self.max_model_len // self.block_size_tokens)

    @property
    def max_full_batch(self) -> int:
        """Requests in a batch for each of which the longest length is reserved."""
        fitting = self.max_full_length_seqs
        if fitting is None:
            fitting = self.num_blocks // self.blocks_of_longest
        return max(1, min(fitting, self.max_num_seqs))

    @property
    def max_micro_batch(self) -> int:
        """Requests in a batch where as many batches as stages share the limit of requests."""
        return max(1, self.max_num_seqs // self.num_stages)


class Job:
    """The state of a request for the rules: lengths and progress."""

    __slots__ = (
        "arrived_at",
        "is_prefilled",
        "most_tokens",
        "num_blocks",
        "num_restarts",
        "processed",
        "prompt_tokens",
        "target",
        "total_tokens",
    )

    def __init__(self, arrived_at: float, prompt_tokens: int, output_tokens: int, most_tokens: int) -> None:
        """`most_tokens` is the declared maximum of prompt and output together."""
        self.arrived_at = arrived_at
        self.prompt_tokens = self.target = prompt_tokens
        self.total_tokens = prompt_tokens + output_tokens
        self.most_tokens = most_tokens
        self.processed = self.num_blocks = self.num_restarts = 0
        self.is_prefilled = False

    @property
    def left(self) -> int:
        """Tokens to be computed before its next output token."""
        return 1 if self.is_prefilled else self.target - self.processed


_NO_PROMPTS = BatchShape()


class Batch:
    """Requests that are computed together, with the tokens of each, and what the time of the batch depends on."""

    __slots__ = ("decode_context_tokens", "decodes", "granule_tokens", "jobs", "prefill", "tokens")

    def __init__(self, jobs: list[Job], tokens: list[int]) -> None:
        self.jobs, self.tokens = jobs, tokens
        decodes = context = prefills = prefill_tokens = prefill_context = work = prompt_work = granules = squares = 0
        for job, count in zip(jobs, tokens, strict=True):
            processed = job.processed
            if job.is_prefilled:
                decodes += 1
                context += processed
            else:
                prefills += 1
                prefill_tokens += count
                squares += count * count
                prompt_work += count * job.target
                if processed:
                    prefill_context += processed
                    work += count * processed
                    granules += -(-processed // KV_GRANULE) * KV_GRANULE
        self.decodes = decodes
        self.decode_context_tokens = context
        """The sum of the contexts of decodes, the token of each included."""
        self.granule_tokens = granules
        """The sum of the contexts of prompts, each rounded up."""
        self.prefill = (
            BatchShape(prefills, prefill_tokens, squares, prefill_context, work, prompt_work)
            if prefills
            else _NO_PROMPTS
        )
        """The shape of the prompts."""

    @property
    def num_prefill_tokens(self) -> int:
        """Return the tokens of prompts."""
        return self.prefill.prefill_tokens

    def shape(self, recent_prefill_tokens: int = 0, *, rounds_contexts: bool = False) -> BatchShape:
        """Return the shape for a latency model; `rounds_contexts` rounds up those of prompts."""
        prompts, decodes = self.prefill, self.decodes
        return BatchShape(
            prompts.prefill_requests,
            prompts.prefill_tokens,
            prompts.prefill_tokens_squared,
            self.granule_tokens if rounds_contexts else prompts.prefill_context_tokens,
            prompts.prefill_context_work,
            prompts.prefill_prompt_work,
            decodes,
            self.decode_context_tokens - decodes,
            recent_prefill_tokens,
        )


class BatchRules(ABC):
    """Composes batches from requests that wait and from those that were computed before."""

    takes_blocks: ClassVar[bool] = True
    """Whether requests take blocks as they grow."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.blocks = BlockCounts(limits.num_blocks, limits.block_size_tokens)
        self.waiting: deque[Job] = deque()
        self.ready: list[Job] = []
        """Requests that have begun and are in no batch."""
        self.num_allocated = 0
        """Requests that hold blocks."""
        self.started: list[Job] = []
        """Requests that left the queue for the latest batch."""
        self.restarted: list[Job] = []
        """Requests that lost their blocks for the latest batch."""
        self.num_watermark_blocks = int(limits.watermark_fraction * limits.num_blocks)

    @abstractmethod
    def compose(self) -> Batch | None:
        """Compose the next batch; None where none can be."""

    @abstractmethod
    def may_join(self, num_requests: int) -> bool:
        """Whether the first of the queue can join the next batch, which has `num_requests` that decode."""

    def add(self, job: Job) -> None:
        """Let a request wait."""
        self.waiting.append(job)

    def take_ready(self) -> list[Job]:
        """Take out the requests that have begun and are in no batch."""
        jobs, self.ready = self.ready, []
        return jobs

    def end(self, batch: Batch) -> list[Job]:
        """Count the tokens of a batch as processed. Returns the requests that are complete, whose blocks are freed."""
        complete: list[Job] = []
        for job, count in zip(batch.jobs, batch.tokens, strict=True):
            processed = job.processed + count
            if processed == job.target and not job.is_prefilled:
                processed += 1  # the first token comes with the prompt
                job.is_prefilled = True
            job.processed = processed
            if processed >= job.total_tokens:
                complete.append(job)
                self.free(job)
            else:
                self.ready.append(job)
        return complete

    def num_equal_batches(self, batch: Batch) -> int:
        """Return how many batches after `batch`, composed last, are equal to it if nothing arrives: all of it decodes.

        The first request that completes does so with the last of them. Only where one batch runs at a time.
        """
        if batch.num_prefill_tokens or self.ready or (self.waiting and self.may_join(batch.decodes)):
            return 0
        more = min([job.total_tokens - job.processed for job in batch.jobs]) - 1
        if more > 0 and self.takes_blocks:
            more = min(more, (self.blocks.num_free - 1) // batch.decodes * self.limits.block_size_tokens)
        return max(more, 0)

    def repeat(self, batch: Batch, count: int) -> int:
        """Compose and end `batch` `count` times more; its tokens are not ended yet.

        Returns the blocks that each of these batches has beyond those of the first one, added up.
        """
        size, taken, held = self.limits.block_size_tokens, 0, 0
        for job in batch.jobs:
            job.processed = processed = job.processed + count
            over = processed - job.num_blocks * size
            if self.takes_blocks and over > 0:
                blocks = -(-over // size)
                # The last batches hold all of these blocks, those before one less for each full block of tokens.
                held += blocks * over - size * (blocks * (blocks - 1) // 2)
                taken += blocks
                job.num_blocks += blocks
        self.blocks.take(taken)
        batch.decode_context_tokens += count * batch.decodes
        self.started, self.restarted = [], []
        return held

    def drop(self, job: Job) -> None:
        """Let a request leave that is in no batch."""
        if job in self.ready:
            self.ready.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        self.free(job)

    def restart(self, job: Job) -> None:
        """Send a request that lost its blocks to the front of the queue; it computes again all it has."""
        if job.is_prefilled or self.limits.is_original:
            job.target = job.processed
        job.processed = 0
        job.is_prefilled = False
        job.num_restarts += 1
        self.free(job)
        self.waiting.appendleft(job)
        self.restarted.append(job)

    def reserve(self, job: Job, num_blocks: int) -> None:
        """Give blocks to a request that holds none."""
        self.blocks.take(num_blocks)
        job.num_blocks = num_blocks
        self.num_allocated += 1

    def free(self, job: Job) -> None:
        """Take back what a request holds."""
        if job.num_blocks:
            self.blocks.give_back(job.num_blocks)
            job.num_blocks = 0
            self.num_allocated -= 1

    def fits(self, job: Job) -> bool:
        """Whether there are blocks for all that a waiting request computes before its next token."""
        free = self.blocks.num_free - -(-job.target // self.limits.block_size_tokens)
        if free >= self.num_watermark_blocks:
            return True
        # The original keeps the watermark also where nothing else can ever run.
        return free >= 0 and not self.num_allocated and not self.limits.is_original

    def grow(self, job: Job, others: list[Job]) -> bool:
        """Give a request that decodes the block that its token needs. False where it had to restart itself.

        While there is none, the last of `others` is restarted.
        """
        size = self.limits.block_size_tokens
        # The original requires a free block even where none is needed.
        while not self.blocks.num_free and (self.limits.is_original or job.processed > job.num_blocks * size):
            if not others:
                self.restart(job)
                return False
            self.restart(others.pop())
        if job.processed > job.num_blocks * size:
            self.blocks.take(1)
            job.num_blocks += 1
        return True

    def decodes(self) -> Batch | None:
        """Let requests decode in the order in which they stand; None where none does."""
        jobs: list[Job] = []
        ready, most = self.ready, self.limits.max_micro_batch
        while ready and len(jobs) < most:
            job = ready.pop(0)
            if self.grow(job, ready):
                jobs.append(job)
        return Batch(jobs, [1] * len(jobs)) if jobs else None


def arrival_of(job: Job) -> float:
    """Orders requests by arrival."""
    return job.arrived_at


class SarathiRules(BatchRules):
    """Sarathi-Serve: decodes first, then chunks of prompts, within a limit of tokens per batch.

    Stall-free batches: a prompt takes what decodes leave of the chunk size, which is `max_num_batched_tokens`."""

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
        return self.decodes()

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


class FasterTransformerRules(BatchRules):
    """A batch is computed again without the requests that are complete; each has its longest length reserved.

    In the original, blocks of requests that complete before the others of their batch are never freed.
    """

    takes_blocks: ClassVar[bool] = False

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits)
        self._batches: deque[list[Job]] = deque()
        """The requests of batches between two computations."""

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
        self.ready.sort(key=arrival_of)
        return self.decodes()

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


RULES: Mapping[str, type[BatchRules]] = {
    "sarathi": SarathiRules,
    "vidur-vllm": VidurVllmRules,
    "orca": OrcaRules,
    "lightllm": LightLLMRules,
    "faster-transformer": FasterTransformerRules,
    "splitwise": SplitwiseRules,
}
"""The rules by the name of the engine that has them."""
