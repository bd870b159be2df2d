"""Requests put together by what they are labelled with."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """The labels that occur, ascending, and for each request which of them is its own."""

    names: list[str]
    codes: Ints

    def members(self, order: Ints) -> Iterator[tuple[str, Ints]]:
        """Each name that occurs among the requests at these places, with their places in this order."""
        codes = self.codes[order]
        by_code = order[np.argsort(codes, kind="stable")]
        start = 0
        for name, count in zip(self.names, np.bincount(codes, minlength=len(self.names)).tolist(), strict=True):
            if count:
                yield name, by_code[start : start + count]
            start += count


def groups_of(labels: Iterable[str]) -> Groups:
    """The groups of a sequence of requests, by the label of each."""
    given = list(labels)
    names = sorted(set(given))
    if len(names) == 1:
        return Groups(names, np.zeros(len(given), np.int64))
    ranks = {name: rank for rank, name in enumerate(names)}
    return Groups(names, np.fromiter(map(ranks.__getitem__, given), np.int64, len(given)))
