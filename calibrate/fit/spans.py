"""Parts of recordings: a server may become faster or slower while it is recorded, as a whole and for good."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrate.fit.recording import Recording

Floats = npt.NDArray[np.float64]

MOST_SPANS = 12
LEAST_REQUESTS = 200
"""Least requests of a span: with fewer its speed would depend more on chance than on the server."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Each recording in parts of so many requests; parts are numbered through, recording after recording."""

    lengths: tuple[int, ...]
    """Requests in each part of a recording; the last part may be shorter."""
    counts: tuple[int, ...]
    """Parts of each recording."""

    @property
    def total(self) -> int:
        return sum(self.counts)

    def memberships(self, recording: int, num_requests: int) -> Floats:
        """A row for each of the first so many requests of a recording, with a 1 in the column of its part."""
        first = sum(self.counts[:recording])
        rows = np.arange(num_requests)
        members = np.zeros((num_requests, self.total))
        members[rows, first + np.minimum(rows // self.lengths[recording], self.counts[recording] - 1)] = 1
        return members

    def of_each(self, values: Floats) -> list[Floats]:
        """`values`, one for each part, by recording."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def spans_of(recordings: Sequence[Recording]) -> Spans:
    """Up to a dozen parts of equal length in each recording."""
    sizes = [len(each.arrivals) for each in recordings]
    counts = tuple(min(MOST_SPANS, max(1, size // LEAST_REQUESTS)) for size in sizes)
    return Spans(tuple(max(1, -(-size // count)) for size, count in zip(sizes, counts, strict=True)), counts)
