"""Requests put together by what they are labelled with."""

from collections.abc import Callable, Iterable, Iterator
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


def groups_of(labels: Iterable[str], name_of: Callable[[str], str] = str) -> Groups:
    """The groups of a sequence of requests, by what the label of each is called."""
    given = list(labels)
    named = {label: name_of(label) for label in set(given)}
    names = sorted(set(named.values()))
    if len(names) == 1:
        return Groups(names, np.zeros(len(given), np.int64))
    ranks = {name: rank for rank, name in enumerate(names)}
    codes = {label: ranks[name] for label, name in named.items()}
    return Groups(names, np.fromiter(map(codes.__getitem__, given), np.int64, len(given)))
