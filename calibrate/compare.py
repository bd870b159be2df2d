"""Statistics of one metric: differences of distributions and of single requests, their confidence, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blis_sim.options import OptionError
from calibrate.pair import Floats

CONSTANT_SPREAD = 0.005
"""Standard deviation over mean up to which recorded values count as constant.

Two recordings of the same run differ by as much, so what is left of the spread is noise nothing can correlate with.
"""
GRADES = (("excellent", 0.10, 0.95), ("good", 0.20, 0.85), ("fair", 0.35, 0.70))
"""Grade, MAPE it stays below, r it stays above. What reaches none is poor."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles (linear between ranks) of one side."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a recording against its simulation. `mape` is a fraction.

    `pearson_r` is None where no correlation exists. `bias` is over-predict, under-predict, neutral, or empty when no
    recorded value is other than 0.
    """

    count: int
    real: Distribution
    sim: Distribution
    mape: float
    pearson_r: float | None
    bias: str
    quality: str


def compare(real: Floats, sim: Floats) -> Comparison:
    """Compare the paired values of a metric; neither array may be empty.

    A recorded metric that is constant, or has fewer than three values, has no correlation with anything: it is graded
    by its MAPE alone.
    """
    r = pearson_r(real, sim)
    error = mape(real, sim)
    if len(real) < 3 or is_constant(real):
        return _comparison(real, sim, error, None, grade(error, 1.0))
    return _comparison(real, sim, error, r, grade(error, r or 0.0))


def compare_compat(real: Floats, sim: Floats) -> Comparison:
    """Compare as the original does: where there is no correlation r is 0, which grades every constant metric as
    poor."""
    r = pearson_r(real, sim) or 0.0
    error = mape(real, sim)
    return _comparison(real, sim, error, r, grade(error, r))


def mape(real: Floats, sim: Floats) -> float:
    """Mean of |real - sim| / real over the pairs whose recorded value is not 0, as a fraction; 0 without any."""
    known = real != 0
    return float(np.mean(np.abs(real[known] - sim[known]) / real[known])) if known.any() else 0.0


def pearson_r(real: Floats, sim: Floats) -> float | None:
    """Pearson's correlation of the pairs; None with fewer than three, or when one side does not vary."""
    if len(real) < 3 or np.ptp(real) == 0 or np.ptp(sim) == 0:
        return None
    return float(np.corrcoef(real, sim)[0, 1])


def is_constant(values: Floats) -> bool:
    """Whether the values vary no more than a repetition of the same measurement would."""
    return bool(np.std(values) <= CONSTANT_SPREAD * abs(np.mean(values)))


def grade(error: float, r: float) -> str:
    """The grade of a MAPE (fraction) and a correlation."""
    return next((name for name, below, above in GRADES if error < below and r > above), "poor")


def distribution(values: Floats) -> Distribution:
    """Mean and percentiles; `values` must not be empty."""
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Distribution(float(np.mean(values)), p50, p90, p95, p99)


def _comparison(real: Floats, sim: Floats, error: float, r: float | None, quality: str) -> Comparison:
    return Comparison(len(real), distribution(real), distribution(sim), error, r, _bias(real, sim), quality)


def _bias(real: Floats, sim: Floats) -> str:
    known = real != 0
    if not known.any():
        return ""
    total = float(np.sum(sim[known] - real[known]))
    if total == 0:
        return "neutral"
    return "over-predict" if total > 0 else "under-predict"


NUM_SAMPLES = 1_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval that holds a figure with 95 % confidence."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ConfidenceIntervals:
    """The intervals of a comparison; errors are fractions. `pearson_r` is None where no correlation exists."""

    mape: Interval
    mean_error: Interval
    p99_error: Interval
    pearson_r: Interval | None


def confidence_intervals(real: Floats, sim: Floats, seed: int = 0) -> ConfidenceIntervals:
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
    return ConfidenceIntervals(mape, mean_error, p99_error, r if has_r else None)


def _interval(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    if not len(known):
        return Interval(0.0, 0.0)
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return Interval(low, high)


METRICS = ("ttft", "e2e", "itl")
EXIT_CODE = 3


def parse_limits(text: str) -> dict[str, float]:
    """Limits on MAPE in percent, such as `ttft=15,e2e=5`, as fractions. Raises OptionError."""
    limits = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        name = name.strip().lower()
        try:
            percent = float(value)
        except ValueError:
            percent = -1.0
        if name not in METRICS or not 0 <= percent < float("inf"):
            allowed = f"{', '.join(METRICS)} with a percentage, such as ttft=15,e2e=5"
            raise OptionError(f"--fail-over takes {allowed}; got {part!r}")
        if name in limits:
            raise OptionError(f"--fail-over names {name} twice")
        limits[name] = percent / 100
    return limits


def exceeded_limits(metrics: Mapping[str, Comparison], limits: Mapping[str, float]) -> list[str]:
    """A line for each limit that the errors exceed. Raises OptionError for a limit on what was not compared."""
    lines = []
    for name, limit in limits.items():
        if name not in metrics:
            raise OptionError(
                f"--fail-over {name} has nothing to judge: no pair has a time between tokens on both sides"
            )
        if metrics[name].mape > limit:
            lines.append(f"{name.upper()} MAPE {metrics[name].mape:.1%} is over the limit of {limit:.1%}")
    return lines
