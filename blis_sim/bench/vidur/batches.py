"""The batches of one replica with the KV blocks that it holds, and those of all replicas side by side."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.scheduler.batch_rules import Batch

SUMS = (
    "numbers",
    "sizes",
    "decodes",
    "prefill_tokens",
    "contexts",
    "prefills",
    "prefill_contexts",
    "prefill_granules",
    "prefill_squares",
    "prefill_work",
)


class StageSpans:
    """When batches were in one stage, in the order of the log, as none overtakes another: starts and ends."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")


class BatchLog:
    """The batches of one replica in the order in which they were composed; equal ones in a row are kept as one."""

    __slots__ = (
        *SUMS,
        "_keeps_members",
        "ends",
        "held_at",
        "held_blocks",
        "jobs",
        "most_blocks",
        "num_samples",
        "sampled_blocks",
        "stages",
        "starts",
        "tokens",
        "unfinished",
    )

    def __init__(self, num_stages: int = 1, *, keeps_members: bool = False) -> None:
        self._keeps_members = keeps_members
        self.starts = array("d")
        """Start of each batch."""
        self.ends = array("d")
        self.numbers = array("i")
        """Number of equal batches in a row; the following columns describe the first of them."""
        self.sizes = array("i")
        self.decodes = array("i")
        self.prefill_tokens = array("i")
        self.contexts = array("q")
        """Tokens in the KV caches of decodes, one more for each decode in the batches that follow."""
        self.prefills = array("i")
        self.prefill_contexts = array("q")
        self.prefill_granules = array("q")
        self.prefill_squares = array("q")
        self.prefill_work = array("q")
        self.jobs = array("i")
        """Numbers of the requests, batch after batch, with the tokens of each in `tokens`; empty unless kept."""
        self.tokens = array("i")
        self.unfinished: list[int] = []
        """Places of batches that had not ended when the simulation did."""
        self.stages = [StageSpans() for _ in range(num_stages)] if num_stages > 1 else []
        """The batches in each of several stages; a single stage has them from start to end."""
        self.held_at = array("d")
        """Instants from which on so many KV blocks of `held_blocks` were held."""
        self.held_blocks = array("d")
        self.most_blocks = self.num_samples = self.sampled_blocks = 0
        """The most KV blocks, and those of all instants at which Vidur looks, added up."""

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, batch: Batch, starts: "array[float]", ends_at: float) -> None:
        """Add so many equal batches, each of which ends where the next one starts."""
        number = len(starts)
        self.starts.extend(starts)
        self.ends.extend(starts[1:])
        self.ends.append(ends_at)
        self.numbers.append(number)
        self.sizes.append(len(batch.jobs))
        self.decodes.append(batch.decodes)
        self.prefill_tokens.append(batch.num_prefill_tokens)
        self.contexts.append(batch.decode_context_tokens - (number - 1) * batch.decodes)
        self.prefills.append(batch.prefills)
        self.prefill_contexts.append(batch.prefill_context_tokens)
        self.prefill_granules.append(batch.prefill_granule_tokens)
        self.prefill_squares.append(batch.prefill_squares)
        self.prefill_work.append(batch.prefill_context_work)
        if self._keeps_members:
            self.jobs.extend([job.index for job in batch.jobs])  # type: ignore[attr-defined]  # jobs have their times
            self.tokens.extend(batch.tokens)

    def set_held_blocks(self, at: float, num_blocks: int) -> None:
        """Note the KV blocks held from `at` on."""
        self.held_at.append(at)
        self.held_blocks.append(num_blocks)
        if num_blocks > self.most_blocks:
            self.most_blocks = num_blocks
        self.num_samples += 1
        self.sampled_blocks += num_blocks

    def correct_held_blocks(self, num_blocks: int) -> None:
        """Correct the KV blocks of the latest instant."""
        self.sampled_blocks += num_blocks - int(self.held_blocks[-1])
        self.held_blocks[-1] = num_blocks

    def add_rising_blocks(self, last_at: float, first: int, count: int, more: int, last: int) -> None:
        """Note the KV blocks of `count` batches that repeat the one before, which had `first`; the last has `last`.

        They have `more` blocks than as many times `first`. Vidur looks at the end of each batch and the start of the
        next.
        """
        total = count * first + more
        self.held_blocks[-1] = (total - last + first) / count
        self.held_at.append(last_at)
        self.held_blocks.append(last)
        self.most_blocks = max(self.most_blocks, last)
        self.num_samples += 2 * count
        self.sampled_blocks += 2 * total - last + first


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batches:
    """Columns with a cell for each batch that ended; its number is its place."""

    replicas: Ints
    entries: Ints
    """The place in the log of its replica, where equal batches in a row are one entry."""
    repeats: Ints
    """How many batches of the same entry come before."""
    starts: Floats
    ends: Floats
    sizes: Ints
    decodes: Ints
    prefill_tokens: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of prompts and of decodes."""
        return self.prefill_tokens + self.decodes

    @property
    def seconds(self) -> Floats:
        """The time from the composition of each batch to its end."""
        return self.ends - self.starts


def batches_of(logs: Sequence[BatchLog]) -> Batches:
    """Return the batches of replicas, without those that had not ended when the simulation did."""
    starts = np.concatenate([np.array(log.starts) for log in logs])
    order = np.argsort(starts, kind="stable")
    order = order[np.concatenate([is_ended(log) for log in logs])[order]]

    def column(values: list[Ints]) -> Ints:
        found: Ints = np.concatenate(values).astype(np.int32)[order]
        return found

    def repeated(name: str) -> Ints:
        return column([np.repeat(np.array(getattr(log, name)), np.array(log.numbers)) for log in logs])

    return Batches(
        replicas=column([np.full(len(log), number) for number, log in enumerate(logs)]),
        entries=column([entries_of(log) for log in logs]),
        repeats=column([repeats_of(log) for log in logs]),
        starts=starts[order],
        ends=np.concatenate([np.array(log.ends) for log in logs])[order],
        sizes=repeated("sizes"),
        decodes=repeated("decodes"),
        prefill_tokens=repeated("prefill_tokens"),
    )


def entries_of(log: BatchLog) -> Ints:
    """Return the entry of each batch of a log."""
    return np.repeat(np.arange(len(log.numbers)), np.array(log.numbers, np.int64))


def repeats_of(log: BatchLog) -> Ints:
    """Return how many batches of the same entry come before each batch of a log."""
    numbers = np.array(log.numbers, np.int64)
    return np.arange(len(log)) - np.repeat(np.cumsum(numbers) - numbers, numbers)


def is_ended(log: BatchLog) -> npt.NDArray[np.bool_]:
    """Return whether each batch had ended when the simulation did."""
    found = np.ones(len(log), np.bool_)
    found[log.unfinished] = False
    return found
