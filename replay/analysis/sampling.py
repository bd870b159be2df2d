"""The sampling error of percentiles: between which values those of another run of as many requests lie."""

from dataclasses import dataclass
from math import ceil, floor, inf, sqrt

import numpy as np

from replay.simulation.record import NEVER, Bools, Ints, Pool, Record, pool_of

_NUM_BATCHES = 16
_DEVIATIONS = 1.753
"""Standard errors that nine of ten estimates stay within, where the error is that of 16 batches (Student's t)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRange:
    """The values, in milliseconds, between which a percentile of an endless run lies in nine of ten cases.

    `num_independent` is the number of independent values with the same sampling error as those of the run.
    """

    low_ms: float
    high_ms: float | None
    """None where the values are too few for a bound."""
    num_independent: float


def sampled_range(record: Record, figure: str) -> SampledRange | None:
    """Return the range of a percentile of a run, such as `itl_p99_ms`; None without values, or with too many gaps.

    The share of values beyond a percentile has a binomial error, from as many values as are independent of each other.
    The method of batch means finds this number: latencies of one queue, and gaps of one step, depend on each other.
    """
    latency, percent, _ = figure.split("_")
    share = int(percent.removeprefix("p")) / 100
    if latency == "itl":
        timed = record.tokens.timed_gaps()
        if timed is None:
            return None
        order = np.argsort(timed.ends_us, kind="stable")
        values_us, counts = timed.gaps_us[order], timed.counts[order]
        pool = record.tokens.gaps()
    else:
        column = {"ttft": record.ttft_us, "e2e": record.e2e_us}[latency]
        values_us = column[column != NEVER]
        counts, pool = np.ones_like(values_us), pool_of(values_us)
    if not len(pool):
        return None
    num_independent = _num_independent(values_us > 1000 * pool.percentile_ms(100 * share), counts)
    low_ms, high_ms = _between(pool, share, num_independent)
    return SampledRange(low_ms=low_ms, high_ms=high_ms, num_independent=num_independent)


def _between(pool: Pool, share: float, num_independent: float) -> tuple[float, float | None]:
    """Return the values at the ranks between which a percentile lies in nine of ten cases."""
    half, size = _DEVIATIONS * sqrt(share * (1 - share) / num_independent), len(pool)
    low, high = floor((share - half) * size), ceil((share + half) * size)
    return pool.at_rank(max(0, low - 1)) / 1000, pool.at_rank(high) / 1000 if high < size else None


def _num_independent(are_beyond: Bools, counts: Ints) -> float:
    """Return how many independent values have the error of these, each of which occurs so often; in the order of time.

    The error is that of the share beyond, from its differences between batches with as many values each. It is at least
    that of the values if they were independent.
    """
    ends = np.cumsum(counts)
    size = int(ends[-1])
    batches = np.minimum((ends - 1) * _NUM_BATCHES // size, _NUM_BATCHES - 1)
    sizes = np.bincount(batches, counts, _NUM_BATCHES)
    num_beyond = np.bincount(batches, counts * are_beyond, _NUM_BATCHES)
    mean = float(num_beyond.sum()) / size
    variance = float(((num_beyond - mean * sizes) ** 2).sum()) * _NUM_BATCHES / (_NUM_BATCHES - 1) / size**2
    return min(float(size), mean * (1 - mean) / variance if variance else inf)
