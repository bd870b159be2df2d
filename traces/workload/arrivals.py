"""When requests arrive: gaps drawn from an arrival process, in microseconds.

Formulas and limits are those of BLIS (sim/workload/arrival.go).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.options.limits import LEAST_RATE
from traces.workload.spec import Arrival

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Gaps: TypeAlias = Callable[[np.random.Generator, int], Floats]
"""Draws so many gaps in microseconds, not rounded."""

_MAX_AT_ONCE = 1 << 20


def gaps_of(arrival: Arrival, rate: float) -> tuple[Gaps, float]:
    """Return a function that draws gaps at `rate` requests per second, and the mean gap (us)."""
    per_us = max(rate, LEAST_RATE) / 1e6
    if arrival.process == "constant":
        # In this order of operations 10 a second are 99,999 us apart, as in the original.
        gap = float(max(1, math.trunc(1 / per_us)))
        return lambda _, count: np.full(count, gap), gap
    if arrival.process == "gamma":
        return _gamma(arrival, per_us)
    if arrival.process == "weibull":
        return _weibull(arrival, per_us)
    return lambda rng, count: rng.exponential(1 / per_us, count), 1 / per_us


def _gamma(arrival: Arrival, per_us: float) -> tuple[Gaps, float]:
    variance = (arrival.cv or 1) ** 2
    shape, scale = arrival.shape, arrival.scale
    if shape is None or scale is None:
        shape, scale = 1 / variance, variance / per_us
    return lambda rng, count: rng.gamma(shape, scale, count), shape * scale


def _weibull(arrival: Arrival, per_us: float) -> tuple[Gaps, float]:
    shape, scale = arrival.shape, arrival.scale
    if shape is None or scale is None:
        shape = weibull_shape(arrival.cv or 1)
        scale = 1 / (per_us * math.gamma(1 + 1 / shape))
    return lambda rng, count: scale * rng.weibull(shape, count), scale * math.exp(min(math.lgamma(1 + 1 / shape), 700))


def weibull_shape(cv: float) -> float:
    """The shape, between 0.1 and 100, of a Weibull distribution with this coefficient of variation."""
    low, high = 0.1, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        # More shape is less variation.
        low, high = (low, middle) if _weibull_cv(middle) < cv else (middle, high)
    return (low + high) / 2


def _weibull_cv(shape: float) -> float:
    ratio = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    return math.sqrt(max(ratio - 1, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalProcess:
    """Gaps one after the other from 0 on. With windows, (start, end) ascending, arrivals outside of them are lost."""

    gaps: Gaps
    mean_gap_us: float
    spread: float = 1.0
    """Coefficient of variation of the gaps, to guess how many are needed."""
    windows: tuple[tuple[int, int], ...] | None = None

    @property
    def start_us(self) -> int:
        """Return the instant before which no request arrives."""
        return self.windows[0][0] if self.windows else 0

    @property
    def end_us(self) -> int | None:
        """Return the instant from which on no request arrives; None when arrivals never end."""
        return None if self.windows is None else self.windows[-1][1]

    def instants(self, rng: np.random.Generator, until_us: int) -> Ints:
        """All arrivals up to and including `until_us`. Drawing up to a later instant gives the same ones before it."""
        if self.end_us is not None:
            until_us = min(until_us, self.end_us - 1)
        pieces: list[Ints] = []
        last = 0.0
        while last <= until_us:
            expected = (until_us - last) / max(self.mean_gap_us, 1)
            count = min(_MAX_AT_ONCE, int(expected + 4 * self.spread * math.sqrt(expected)) + 8)
            # Whole numbers held as floats are exact up to 2**53 us, and do not wrap around beyond.
            at = last + np.cumsum(np.maximum(np.floor(self.gaps(rng, count)), 1))
            last = float(at[-1])
            pieces.append(self._inside(at[: np.searchsorted(at, until_us, side="right")].astype(np.int64)))
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _inside(self, at: Ints) -> Ints:
        if self.windows is None:
            return at
        starts = np.array([start for start, _ in self.windows])
        ends = np.array([end for _, end in self.windows])
        window = np.searchsorted(starts, at, side="right") - 1
        return at[(window >= 0) & (at < ends[window])]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCountArrivals:
    """A fixed number of gaps, stretched to fill a window exactly; the last arrival falls on its end."""

    gaps: Gaps
    num_gaps: int
    start_us: int
    duration_us: float
    keeps_last: bool = False

    @property
    def end_us(self) -> int:
        """Return the instant from which on no request arrives."""
        return self.start_us + math.ceil(self.duration_us) + 1

    @property
    def mean_gap_us(self) -> float:
        return self.duration_us / max(self.num_gaps, 1)

    @property
    def spread(self) -> float:
        return 1.0

    def instants(self, rng: np.random.Generator, until_us: int) -> Ints:
        """All arrivals up to and including `until_us`."""
        ends = np.cumsum(self.gaps(rng, self.num_gaps))
        kept = ends if self.keeps_last else ends[:-1]
        total = float(ends[-1]) if len(ends) else 0.0
        if total <= 0:
            return np.empty(0, np.int64)
        # A last gap close to nothing is lost in the division; what comes before it is still before the end.
        latest = self.duration_us - (0 if self.keeps_last else 1)
        at = self.start_us + np.floor(np.minimum(kept / total * self.duration_us, latest)).astype(np.int64)
        return at[at <= until_us]


Timeline: TypeAlias = RenewalProcess | FixedCountArrivals
