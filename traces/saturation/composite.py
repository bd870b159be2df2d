"""The `composite` detector: behind when fewer requests are answered than arrive, or when answers take ever longer."""

import numpy as np

from traces.saturation.settings import SaturationSettings
from traces.saturation.timeline import Floats, Ints, Level, Timeline, Verdicts, confidence, noise_floor

_MIN_ANSWERS_FOR_TREND = 20
_MAX_ANSWERS_TO_THE_LAST_BIT = 30_000


def composite(events: Timeline, first: int, settings: SaturationSettings) -> Verdicts:
    """Verdicts on the events from number `first` on."""
    num_arrived, num_answered = events.num_arrived[first:], events.num_answered[first:]
    counts, which = np.unique(num_answered, return_inverse=True)
    raw = _trend(events.latencies_ms, counts)[which]
    rising = _rises_by_quarters(events.latencies_ms, counts)[which]
    trend = np.where(rising, raw, 0.0)
    deficit = np.maximum(0, 1 - num_answered / num_arrived)
    noise = noise_floor(num_arrived)
    scores = np.maximum(deficit, trend)
    levels = np.where(scores < noise, Level.STABLE, np.where(trend > noise, Level.OVERLOADED, Level.BACKLOGGED))
    return Verdicts(
        levels=levels.astype(np.int64),
        scores=scores,
        confidences=confidence(num_arrived),
        signals={
            "latency_trend": trend,
            "latency_trend_raw": raw,
            "noise_floor": noise,
            "quartile_monotone": rising.astype(np.float64),
            "rate_deficit": deficit,
        },
    )


def _trend(latencies_ms: Floats, counts: Ints) -> Floats:
    """For the first n answers, n from `counts`: by which share the later half took longer than the first, 0 to 1."""
    trends = np.zeros(len(counts))
    enough = counts >= 2
    n = counts[enough]
    earlier = _means(latencies_ms, np.zeros_like(n), n // 2)
    later = _means(latencies_ms, n // 2, n)
    trends[enough] = np.clip(np.divide(later - earlier, earlier, out=np.zeros(len(n)), where=earlier > 0), 0, 1)
    return trends


def _rises_by_quarters(latencies_ms: Floats, counts: Ints) -> np.ndarray:
    """For the first n answers: whether each quarter took longer than the one before. The last one has the rest."""
    rises = np.zeros(len(counts), np.bool_)
    enough = counts >= _MIN_ANSWERS_FOR_TREND
    n = counts[enough]
    quarter = n // 4
    bounds = [0 * quarter, quarter, 2 * quarter, 3 * quarter, n]
    means = [_means(latencies_ms, bounds[i], bounds[i + 1]) for i in range(4)]
    rises[enough] = (means[0] < means[1]) & (means[1] < means[2]) & (means[2] < means[3])
    return rises


def _means(values: Floats, starts: Ints, ends: Ints) -> Floats:
    """The means of values[start:end], for ascending starts.

    Each stretch is added up from its own start, as the original does, for the last bit of a sum depends on the order.
    That takes n^2 additions for all n answers, so with very many of them sums are differences of running totals.
    """
    counts = np.maximum(ends - starts, 1)
    if len(values) > _MAX_ANSWERS_TO_THE_LAST_BIT:
        totals = np.concatenate([np.zeros(1), np.cumsum(values)])
        sums = totals[ends] - totals[starts]
        return np.asarray(sums / counts, np.float64)
    sums = np.zeros(len(starts))
    distinct, begins = np.unique(starts, return_index=True)
    for start, begin, stop in zip(distinct, begins, np.append(begins, len(starts))[1:], strict=True):
        of_start = ends[begin:stop]
        running = np.cumsum(values[start : of_start.max()])
        sums[begin:stop] = running[of_start - start - 1]
    return np.asarray(sums / counts, np.float64)
