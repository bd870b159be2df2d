"""Figures of a run in memory that does not grow: distributions, and how full, busy and well used instances were."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, log

import numpy as np
import numpy.typing as npt

from blis_sim.engine.units import Micros

ACCURACY = 0.001
"""Largest relative error of a quantile, as in Vidur's plots."""
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = log(_GAMMA)
_MOST_LATEST = 4096


class QuantileSketch:
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


BINS = 512
"""Points of a course; their width doubles whenever a run outgrows them."""
FIRST_BIN_US = 1_000


class TimeWeighted:
    """A piecewise constant figure: its extremes, its time-weighted mean, and its course."""

    __slots__ = ("_sums", "_width_us", "at", "largest", "least", "total", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.at: Micros = 0
        self.least = 0.0
        self.largest = 0.0
        self.total = 0.0
        """Value times microseconds so far."""
        self._width_us = FIRST_BIN_US
        self._sums = [0.0] * BINS

    def set(self, value: float, at: Micros) -> None:
        """Set the figure to `value` from `at` on, which is not before the latest change."""
        self.extend_to(at)
        self.value = value
        if value < self.least:
            self.least = value
        if value > self.largest:
            self.largest = value

    def extend_to(self, at: Micros) -> None:
        """Extend the current value to `at`."""
        start = self.at
        if at <= start:
            return
        self.at = at
        if self.value:
            self._spread(self.value, start, at)

    def add_interval(self, value: float, start: Micros, end: Micros) -> None:
        """Set the figure to `value` between two instants, and to 0 before and after them."""
        start = max(start, self.at)
        if end <= start:
            return
        self.at = end
        if value:
            if value > self.largest:
                self.largest = value
            self._spread(value, start, end)

    def _spread(self, value: float, start: Micros, at: Micros) -> None:
        """Add the time between two instants with a value to the sums."""
        self.total += value * (at - start)
        while at > BINS * self._width_us:
            self._double()
        width, sums = self._width_us, self._sums
        first, last = start // width, (at - 1) // width
        if first == last:
            sums[first] += value * (at - start)
            return
        sums[first] += value * ((first + 1) * width - start)
        for place in range(first + 1, last):
            sums[place] += value * width
        sums[last] += value * (at - last * width)

    def mean(self, until: Micros) -> float:
        """Return the mean over time from 0 to `until`."""
        return self.total / until if until else 0.0

    def time_series(self, until: Micros) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the middle of each stretch of time in seconds, and the mean value in it."""
        count = min(BINS, -(-until // self._width_us))
        starts = np.arange(count) * self._width_us
        lengths = np.minimum(self._width_us, until - starts)
        return (starts + lengths / 2) / 1e6, np.array(self._sums[:count]) / lengths

    def _double(self) -> None:
        sums = self._sums
        self._sums = [sums[place] + sums[place + 1] for place in range(0, BINS, 2)] + [0.0] * (BINS // 2)
        self._width_us *= 2


class RateSeries:
    """A count of events by time bins, whose width doubles whenever a run outgrows them."""

    __slots__ = ("_counts", "_width_us")

    def __init__(self) -> None:
        self._width_us = FIRST_BIN_US
        self._counts = [0] * BINS

    def add(self, at: Micros, count: int) -> None:
        """Count events at an instant."""
        while at >= BINS * self._width_us:
            counts = self._counts
            self._counts = [counts[place] + counts[place + 1] for place in range(0, BINS, 2)] + [0] * (BINS // 2)
            self._width_us *= 2
        self._counts[at // self._width_us] += count

    def time_series(self, until: Micros) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the middle of each stretch of time in seconds, and how much happened in it per second.

        Stretches are joined to at most `_MOST_STRETCHES`, as a count for each millisecond is nearly all zeros.
        """
        joined = BINS // _MOST_STRETCHES
        width_us = self._width_us * joined
        counts = np.array(self._counts).reshape(-1, joined).sum(axis=1)[: -(-until // width_us)]
        starts = np.arange(len(counts)) * width_us
        lengths = np.minimum(width_us, until - starts)
        return (starts + lengths / 2) / 1e6, counts / lengths * 1e6


_MOST_STRETCHES = 64


@dataclass(slots=True)
class StageUse:
    """One pipeline stage of an instance."""

    busy: TimeWeighted = field(default_factory=TimeWeighted)
    mfu: TimeWeighted = field(default_factory=TimeWeighted)

    def computes(self, started_at: Micros, ended_at: Micros, mfu_percent: float) -> None:
        """Count a batch that was in the stage between two instants."""
        self.busy.add_interval(100.0, started_at, ended_at)
        self.mfu.add_interval(mfu_percent, started_at, ended_at)


@dataclass(slots=True)
class ReplicaUse:
    """One instance."""

    memory: TimeWeighted
    stages: list[StageUse]

    @classmethod
    def of_stages(cls, num_stages: int) -> "ReplicaUse":
        """Return the use of an idle instance."""
        return cls(TimeWeighted(), [StageUse() for _ in range(num_stages)])


def utilization(replicas: dict[int, ReplicaUse], until: Micros) -> dict[str, float]:
    """Return the figures of utilization.json; keys are Vidur's, and replica 0 is the first one."""
    found: dict[str, float] = {}
    for number, replica in sorted(replicas.items()):
        levels = {f"replica_{number}_memory_usage": replica.memory}
        for stage, use in enumerate(replica.stages):
            levels[f"replica_{number}_stage_{stage}_busy_time_percent"] = use.busy
            levels[f"replica_{number}_stage_{stage}_mfu"] = use.mfu
        for name, level in levels.items():
            level.extend_to(until)
            found |= {
                f"{name}_min": level.least,
                f"{name}_max": level.largest,
                f"{name}_weighted_mean": level.mean(until),
            }
    return found
