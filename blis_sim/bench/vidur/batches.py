"""The batches of all replicas side by side, numbered in the order in which they were composed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.bench.vidur.batch_log import BatchLog

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
