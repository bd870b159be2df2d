"""The batches of one replica with the KV blocks that it holds, and those of all replicas side by side."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]
"""A column for each figure of batches, with a cell for each batch."""

_COUNTS = (
    "batch_size",
    "batch_num_decode_tokens",
    "batch_num_prefill_tokens",
    "contexts",
    "prefills",
    "prefill_contexts",
    "prefill_squares",
    "prefill_work",
)
"""Sums over the requests of a batch, the first three as batch_metrics.csv names them. `contexts` are those of decodes,
each with its own token."""


class BatchLog:
    """The batches of one replica in the order in which they were composed, and the KV blocks held over time."""

    def __init__(self, num_stages: int = 1, *, keeps_members: bool = False) -> None:
        self._keeps_members = keeps_members
        self.starts, self.ends = array("d"), array("d")
        self.counts = {name: array("q") for name in _COUNTS}
        self.members: list[tuple[list[int], list[int]]] = []
        """Numbers of the requests of each batch with the tokens of each; empty unless kept."""
        self.stages = [(array("d"), array("d")) for _ in range(num_stages)] if num_stages > 1 else []
        """Starts and ends of the batches in each of several stages; one stage has them from start to end."""
        self.held_at, self.held_blocks = array("d"), array("d")
        """Instants from which on so many KV blocks were held."""
        self.most_blocks = self.num_samples = self.sampled_blocks = 0
        """The most KV blocks, and those of all instants at which Vidur looks, added up."""

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, shape: BatchShape, members: tuple[list[int], list[int]], starts: "array[float]", end: float) -> None:
        """Add a batch for each of `starts`, the last of which ends at `end` and the others as the next one starts.

        The first has this shape; in each that follows every request decodes one token more.
        """
        number, decodes = len(starts), shape.decode_requests
        self.starts.extend(starts)
        self.ends.extend(starts[1:])
        self.ends.append(end)
        counts = (
            shape.num_requests,
            decodes,
            shape.prefill_tokens,
            shape.decode_context_tokens + decodes,
            shape.prefill_requests,
            shape.prefill_context_tokens,
            shape.prefill_tokens_squared,
            shape.prefill_context_work,
        )
        for column, count in zip(self.counts.values(), counts, strict=True):
            if number == 1:
                column.append(count)
            else:
                column.extend(array("q", (count,)) * number)
        if number > 1:
            first = counts[_COUNTS.index("contexts")]
            self.counts["contexts"][-number:] = array("q", range(first, first + number * decodes, decodes))
        if self._keeps_members:
            self.members += [members] * number

    def set_held_blocks(self, at: float, num_blocks: int) -> None:
        """Note the KV blocks held from `at` on."""
        self.held_at.append(at)
        self.held_blocks.append(num_blocks)
        self.most_blocks = max(self.most_blocks, num_blocks)
        self.num_samples += 1
        self.sampled_blocks += num_blocks

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

    @property
    def spans(self) -> "list[tuple[array[float], array[float]]]":
        """Starts and ends of all batches in each stage."""
        return self.stages or [(self.starts, self.ends)]

    def ended(self, limit: float) -> npt.NDArray[np.int64]:
        """Return the places of the batches that end by an instant."""
        return np.flatnonzero(np.array(self.ends) <= limit)


def columns_of(logs: Sequence[BatchLog], limit: float) -> Columns:
    """Return the batches of all replicas that end by an instant. The number of a batch is its place by start.

    Beside the counts of a log there are `replicas`, `places` in the log of the replica, `starts`, `ends`,
    `batch_execution_time` in seconds, and `batch_num_tokens`.
    """
    ended = [log.ended(limit) for log in logs]

    def column(values: Sequence[npt.ArrayLike]) -> Column:
        return np.concatenate([np.asarray(each)[places] for each, places in zip(values, ended, strict=True)])

    starts = column([log.starts for log in logs])
    order = np.argsort(starts, kind="stable")
    found = {
        "replicas": column([np.full(len(log), number) for number, log in enumerate(logs)]),
        "places": np.concatenate(ended),
        "starts": starts,
        "ends": column([log.ends for log in logs]),
        **{name: column([log.counts[name] for log in logs]) for name in _COUNTS},
    }
    found = {name: values[order] for name, values in found.items()}
    found["batch_execution_time"] = found["ends"] - found["starts"]
    found["batch_num_tokens"] = found["batch_num_prefill_tokens"] + found["batch_num_decode_tokens"]
    return found
