"""Who breaks ties: a source of draws that a cluster is given, so that others can hand in theirs."""

from collections.abc import Callable
from typing import TypeAlias

from blis_sim.engine.draws import mixed

Ties: TypeAlias = Callable[[int], int]
"""One of so many equals: from 0 up to, and excluding, that number."""


DEFAULT_SEED = 42


class SeededTieBreaker:
    """Draws that follow from a seed: the same in every run."""

    __slots__ = ("_base", "_num_draws")

    def __init__(self, seed: int) -> None:
        self._base = mixed(seed)
        self._num_draws = 0

    def __call__(self, num_equals: int) -> int:
        self._num_draws += 1
        return mixed(self._base ^ self._num_draws) % num_equals
