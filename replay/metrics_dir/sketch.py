"""Distributions of values that come one by one, in memory that does not grow with their number."""

from collections.abc import Iterable
from math import ceil, log

import numpy as np
import numpy.typing as npt

ACCURACY = 0.001
"""Largest relative error of a quantile, as in Vidur's plots."""
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = log(_GAMMA)


class Sketch:
    """Counts of values in buckets whose bounds grow by a constant factor; values of at most 1e-9 count as 0."""

    __slots__ = ("_buckets", "count", "largest", "least", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.least = 0.0
        self.largest = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value of at least 0, `count` times."""
        if not self.count or value < self.least:
            self.least = value
        if not self.count or value > self.largest:
            self.largest = value
        key = ceil(log(value) / _LOG_GAMMA) if value > 1e-9 else _ZERO
        buckets = self._buckets
        buckets[key] = buckets.get(key, 0) + count
        self.count += count
        self.total += value * count

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
        keys = np.array(sorted(self._buckets), np.int64)
        counts = np.array([self._buckets[key] for key in keys.tolist()], np.int64)
        values = np.where(keys == _ZERO, 0.0, 2 * _GAMMA ** np.maximum(keys, -30_000).astype(float) / (_GAMMA + 1))
        values = np.clip(values, self.least, self.largest)
        return values, np.cumsum(counts) / max(self.count, 1)


_ZERO = -(1 << 40)
"""The bucket of values that have no logarithm."""
