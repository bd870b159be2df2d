"""Adding up so that the same numbers give the same sum in every Python."""

from collections.abc import Iterable
from functools import reduce
from operator import add


def added_up(values: Iterable[float]) -> float:
    """The sum of numbers, one added after the other: the built-in one rounds floats otherwise since Python 3.12."""
    return reduce(add, values, 0)
