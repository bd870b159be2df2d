"""Percentiles and means of samples: large ones of whole microseconds, and those of one group of requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.units import Micros

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Pool:
    """Whole-microsecond values with how often each occurs: a large sample kept small."""

    values_us: npt.NDArray[np.int64]
    """Ascending."""
    cumulative: npt.NDArray[np.int64]
    """Occurrences up to and including each value."""

    def __len__(self) -> int:
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    def at_rank(self, rank: int) -> int:
        """The value at 0-based `rank` of the sorted sample."""
        return int(self.values_us[np.searchsorted(self.cumulative, rank, side="right")])

    def mean_ms(self) -> float:
        """Mean in milliseconds, 0 without values."""
        if not len(self):
            return 0.0
        return float(self._total()) / len(self) / 1000

    def _total(self) -> int:
        """Exact sum of all values, whether or not it fits in 64 bits."""
        counts = np.diff(self.cumulative, prepend=0)
        if int(self.values_us[-1]) * len(self) <= _LARGEST:
            return int(np.dot(self.values_us, counts))
        return sum(value * count for value, count in zip(self.values_us.tolist(), counts.tolist(), strict=True))

    def percentile_ms(self, percent: float) -> float:
        """Linear interpolation at rank percent/100*(n-1), in milliseconds; 0 without values.

        The order of operations fixes the last bit, as in the reference results.
        """
        if not len(self):
            return 0.0
        rank = percent / 100 * (len(self) - 1)
        lower = int(rank)
        low = self.at_rank(lower)
        if rank == lower:
            return low / 1000
        return low / 1000 + (self.at_rank(lower + 1) - low) * (rank - lower) / 1000


def pool_of(values_us: Iterable[Micros]) -> Pool:
    """A pool of the given values."""
    given = values_us if isinstance(values_us, np.ndarray) else np.fromiter(values_us, np.int64)
    return counted_pool(given, None)


def counted_pool(values_us: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None) -> Pool:
    """A pool in which each value occurs `counts` times, or once."""
    order = np.argsort(values_us, kind="stable")
    weights = np.ones_like(values_us) if counts is None else counts
    return Pool(values_us[order], np.cumsum(weights[order]))


def merged(pools: Sequence[Pool]) -> Pool:
    """All values of several pools."""
    if not pools:
        return pool_of(())
    values_us = np.concatenate([pool.values_us for pool in pools])
    return counted_pool(values_us, np.concatenate([np.diff(pool.cumulative, prepend=0) for pool in pools]))


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values with their mean, in the unit of the values; 0 for figures of an empty one."""

    mean: float
    ascending: Floats

    def __len__(self) -> int:
        return len(self.ascending)

    def percentile(self, percent: float) -> float:
        """Linear interpolation at rank percent/100*(n-1)."""
        if not len(self):
            return 0.0
        rank = percent / 100 * (len(self) - 1)
        lower = int(rank)
        low, high = self.ascending[lower], self.ascending[min(lower + 1, len(self) - 1)]
        return float(low + (rank - lower) * (high - low))


def distribution(values: npt.NDArray[np.int64] | Floats) -> Distribution:
    """The distribution of a sample. Its mean adds the values up in their order, which decides its last bit."""
    floats = values.astype(np.float64)
    mean = float(np.cumsum(floats)[-1]) / len(floats) if len(floats) else 0.0
    return Distribution(mean, np.sort(floats))
