"""Distributions of values that come one by one, in memory that does not grow with their number."""

import math
from collections.abc import Iterable
from math import ceil, log

import numpy as np
import numpy.typing as npt

ACCURACY = 0.001
"""Largest relative error of a quantile, as in Vidur's plots."""
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = log(_GAMMA)
_MOST_LATEST = 4096


class Sketch:
    """Counts of values in buckets whose bounds grow by a constant factor; values of at most 1e-9 count as 0."""

    __slots__ = ("_buckets", "_count", "_largest", "_latest", "_least", "_total")

    def __init__(self) -> None:
        self._latest: dict[float, int] = {}
        """Values that are in no bucket yet, with their counts: many are alike, and a logarithm takes time."""
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._total = 0.0
        self._least = math.inf
        self._largest = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value of at least 0, `count` times."""
        latest = self._latest
        latest[value] = latest.get(value, 0) + count
        if len(latest) > _MOST_LATEST:
            self._settle()

    @property
    def count(self) -> int:
        self._settle()
        return self._count

    @property
    def total(self) -> float:
        self._settle()
        return self._total

    @property
    def least(self) -> float:
        self._settle()
        return self._least if self._count else 0.0

    @property
    def largest(self) -> float:
        self._settle()
        return self._largest

    def _settle(self) -> None:
        """Put all values into buckets."""
        if not self._latest:
            return
        buckets = self._buckets
        for value, count in self._latest.items():
            key = ceil(log(value) / _LOG_GAMMA) if value > 1e-9 else _ZERO
            buckets[key] = buckets.get(key, 0) + count
            self._count += count
            self._total += value * count
        self._least = min(self._least, min(self._latest))
        self._largest = max(self._largest, max(self._latest))
        self._latest.clear()

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantiles(self, fractions: Iterable[float]) -> npt.NDArray[np.float64]:
        """Return the value below which each fraction of the sample lies; empty without values."""
        values, shares = self.cdf()
        if not self.count:
            return np.array([])
        places = np.searchsorted(shares, np.asarray(list(fractions)) - 1e-12, side="left")
        return values[np.minimum(places, len(values) - 1)]

    def cdf(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return ascending values, and the fraction of the sample up to each."""
        self._settle()
        keys = np.array(sorted(self._buckets), np.int64)
        counts = np.array([self._buckets[key] for key in keys.tolist()], np.int64)
        values = np.where(keys == _ZERO, 0.0, 2 * _GAMMA ** np.maximum(keys, -30_000).astype(float) / (_GAMMA + 1))
        values = np.clip(values, self.least, self.largest)
        return values, np.cumsum(counts) / max(self._count, 1)


_ZERO = -(1 << 40)
"""The bucket of values that have no logarithm."""
