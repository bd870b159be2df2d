"""Adding up so that the same numbers give the same sum in every Python."""

from collections.abc import Iterable
from functools import reduce
from operator import add


def sequential_sum(values: Iterable[float]) -> float:
    """Return the sum of numbers, added left to right: the built-in `sum` rounds floats otherwise since Python 3.12."""
    return reduce(add, values, 0)
