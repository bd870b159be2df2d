"""The common part of schedulers that compose one batch after the other: no clock, only requests and their KV blocks.

A set of rules decides in `compose` which requests get how many tokens; its driver decides when a batch ends. A request
is processed to its first output token when its prompt is, as the batch that ends the prompt brings that token. Facts:
vidur/scheduler/replica_scheduler, vidur/entities/request.py.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, KeysView
from dataclasses import dataclass
from typing import ClassVar


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


class Batch:
    """Requests that are computed together, with the tokens of each, and what the time of the batch depends on."""

    __slots__ = (
        "decode_context_tokens",
        "decodes",
        "jobs",
        "num_prefill_tokens",
        "num_tokens",
        "prefill_context_tokens",
        "prefill_context_work",
        "prefill_granule_tokens",
        "prefill_squares",
        "prefills",
        "tokens",
    )

    def __init__(self, jobs: list[Job], tokens: list[int]) -> None:
        self.jobs, self.tokens = jobs, tokens
        decodes = context = prefills = prefill_tokens = prefill_context = work = granules = squares = 0
        for job, count in zip(jobs, tokens, strict=True):
            processed = job.processed
            if job.is_prefilled:
                decodes += 1
                context += processed
            else:
                prefills += 1
                prefill_tokens += count
                squares += count * count
                if processed:
                    prefill_context += processed
                    work += count * processed
                    granules += -(-processed // KV_GRANULE) * KV_GRANULE
        self.decodes, self.prefills = decodes, prefills
        self.decode_context_tokens = context
        """The sum of the contexts of decodes, the token of each included."""
        self.num_prefill_tokens = prefill_tokens
        self.num_tokens = prefill_tokens + decodes
        self.prefill_context_tokens = prefill_context
        self.prefill_context_work = work
        """The sum over prompts of the tokens computed times those before them."""
        self.prefill_granule_tokens = granules
        """The sum of the contexts of prompts, each rounded up."""
        self.prefill_squares = squares


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

    @property
    def num_ready(self) -> int:
        """Return how many requests have begun and are in no batch."""
        return len(self.ready)

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
        if batch.prefills or self.ready or (self.waiting and self.may_join(batch.decodes)):
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


def arrival_of(job: Job) -> float:
    """Orders requests by arrival."""
    return job.arrived_at
