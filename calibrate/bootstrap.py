"""How sure the figures of a comparison are: the spread they have over random samples of the requests."""

from dataclasses import dataclass

import numpy as np

from calibrate.compare import is_constant
from calibrate.network import Floats

NUM_SAMPLES = 1_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies with 95 % confidence."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """The intervals of a comparison; errors are fractions. `pearson_r` is None where no correlation exists."""

    mape: Interval
    mean_error: Interval
    p99_error: Interval
    pearson_r: Interval | None


def confidence(real: Floats, sim: Floats, seed: int = 0) -> Confidence:
    """Intervals by resampling the pairs with replacement; the same seed gives the same ones.

    Requests that run together share their errors, so the intervals are somewhat too narrow.
    """
    generator = np.random.default_rng(seed)
    errors = np.abs(sim - real) / np.where(real == 0, np.nan, real)
    has_r = len(real) >= 3 and not is_constant(real) and np.ptp(sim) > 0
    figures = np.empty((NUM_SAMPLES, 4))
    for number in range(NUM_SAMPLES):
        places = generator.integers(0, len(real), len(real))
        one, other = real[places], sim[places]
        p99 = np.percentile(one, 99)
        figures[number] = (
            np.nanmean(errors[places]) if np.isfinite(errors[places]).any() else np.nan,
            other.sum() / one.sum() - 1 if one.sum() else np.nan,
            np.percentile(other, 99) / p99 - 1 if p99 else np.nan,
            np.corrcoef(one, other)[0, 1] if has_r and np.ptp(one) and np.ptp(other) else np.nan,
        )
    mape, mean_error, p99_error, r = (_interval(column) for column in figures.T)
    return Confidence(mape, mean_error, p99_error, r if has_r else None)


def _interval(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    if not len(known):
        return Interval(0.0, 0.0)
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return Interval(low, high)
