"""Detectors of an overloaded server by name, their verdicts on a run, and the file of all verdicts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from traces.saturation_options import SaturationSettings
from traces.text_file import write_json

# Detectors of an overloaded server: a verdict after each arrival and completion of a run.

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Two events for each answered request, its arrival and its answer, in order of time.

    Arrivals come first where times are equal, then what has the smaller id.
    """

    at_us: Ints
    num_arrived: Ints
    """Arrivals up to and including each event."""
    num_answered: Ints
    """Answers up to and including each event."""
    latencies_ms: Floats
    """Completions in order."""

    def __len__(self) -> int:
        return len(self.at_us)


def timeline(arrived_at_us: Ints, e2e_us: Ints, ids: Sequence[str]) -> Timeline:
    """The events of answered requests: when each arrived, and how long its answer took.

    Instants go through seconds and milliseconds, as in the original's files; that may cost a microsecond.
    """
    count = len(ids)
    e2e_ms = e2e_us / 1000
    arrivals = (arrived_at_us / 1e6 * 1e6).astype(np.int64)
    answers = arrivals + (e2e_ms * 1e3).astype(np.int64)
    ranks = np.empty(count, np.int64)
    ranks[sorted(range(count), key=ids.__getitem__)] = np.arange(count)
    at_us = np.concatenate([arrivals, answers])
    is_answer = np.arange(2 * count) >= count
    order = np.lexsort((np.concatenate([ranks, ranks]), is_answer, at_us))
    answered = is_answer[order]
    return Timeline(
        at_us=at_us[order],
        num_arrived=np.cumsum(~answered),
        num_answered=np.cumsum(answered),
        latencies_ms=e2e_ms[order[answered] - count],
    )


_ARRIVALS_FOR_CONFIDENCE = 20


class Level(IntEnum):
    """State of a server; larger is worse."""

    STABLE = 0
    BACKLOGGED = 1
    """Behind, but not ever more so."""
    OVERLOADED = 2


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry per event. `signals` are the figures behind the level; the first `num_without_signals` have none."""

    levels: Ints
    scores: Floats
    confidences: Floats
    """From 0 to 1: how many requests there are to judge by."""
    signals: dict[str, Floats]
    num_without_signals: int = 0

    def __len__(self) -> int:
        return len(self.levels)


def noise_floor(num_arrived: Ints) -> Floats:
    """Return the deviation expected from chance for the number of requests."""
    return np.asarray(1 / np.sqrt(num_arrived), np.float64)


def confidence(num_arrived: Ints) -> Floats:
    """Full confidence takes 20 requests."""
    return np.minimum(1, num_arrived / _ARRIVALS_FOR_CONFIDENCE)


def threshold(events: Timeline, first: int, settings: SaturationSettings) -> Verdicts:
    """Verdicts on the events from number `first` on."""
    num_answered = events.num_answered[first:]
    limit_ms = settings.threshold_ms
    # Added up one by one: the last bit depends on the order.
    sums_ms = np.concatenate([np.zeros(1), np.cumsum(events.latencies_ms)])
    means_ms = sums_ms[num_answered] / np.maximum(num_answered, 1)
    too_slow = means_ms >= limit_ms
    scores = np.where(
        too_slow, 0.75 + np.minimum(0.25, (means_ms - limit_ms) / limit_ms / 4), 0.5 * means_ms / limit_ms
    )
    return Verdicts(
        levels=np.where(too_slow, Level.OVERLOADED, Level.STABLE).astype(np.int64),
        scores=scores,
        confidences=np.where(num_answered > 0, 1 - 1 / np.sqrt(num_answered + 1), 0.0),
        signals={"mean_e2e": means_ms, "threshold": np.full(len(means_ms), limit_ms)},
        num_without_signals=int(np.searchsorted(num_answered, 1)),
    )


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


_OVERLOADED_AT_NOISE_FLOORS = 3


def backlog_drift(events: Timeline, first: int, settings: SaturationSettings) -> Verdicts:
    """Verdicts on the events from number `first` on."""
    in_flight = events.num_arrived - events.num_answered
    slopes = _slopes(events.at_us // settings.window_us, in_flight)[first:]
    noise = noise_floor(events.num_arrived[first:])
    much = _OVERLOADED_AT_NOISE_FLOORS * noise
    levels = np.where(slopes <= noise, Level.STABLE, np.where(slopes <= much, Level.BACKLOGGED, Level.OVERLOADED))
    return Verdicts(
        levels=levels.astype(np.int64),
        scores=np.minimum(1, np.maximum(0, slopes) / much),
        confidences=confidence(events.num_arrived[first:]),
        signals={
            "arrivals": events.num_arrived[first:].astype(np.float64),
            "completions": events.num_answered[first:].astype(np.float64),
            "in_flight": in_flight[first:].astype(np.float64),
            "noise_floor": noise,
            "running_slope": slopes,
        },
    )


def _slopes(windows: Ints, values: Ints) -> Floats:
    """After each event, the least-squares slope of what was the value at the end of each window so far.

    Windows count from 0; one without events keeps the value of the one before it, and the present one has its latest.
    """
    occupied, firsts, which = np.unique(windows, return_index=True, return_inverse=True)
    at_end = values[np.append(firsts[1:], len(values)) - 1].astype(np.float64)
    lasts = occupied.astype(np.float64)
    num_held = np.diff(lasts)
    before = _sums_before(at_end[:-1] * num_held)[which]
    weighted_before = _sums_before(at_end[:-1] * num_held * (lasts[:-1] + lasts[1:] - 1) / 2)[which]
    x, y = windows.astype(np.float64), values.astype(np.float64)
    count = x + 1
    sum_x = x * count / 2
    sum_xx = x * count * (2 * x + 1) / 6
    sum_y = before + y
    sum_xy = weighted_before + x * y
    spread = count * sum_xx - sum_x * sum_x
    return np.divide(count * sum_xy - sum_x * sum_y, spread, out=np.zeros(len(x)), where=spread > 0)


def _sums_before(values: Floats) -> Floats:
    """The sum of all values before each place, and of all of them at the end."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


DETECTORS: Mapping[str, Callable[[Timeline, int, SaturationSettings], Verdicts]] = {
    "composite": composite,
    "threshold": threshold,
    "backlog-drift": backlog_drift,
}
"""Each gives its verdicts on the events of a timeline from a certain one on. Adding one is adding its row."""

# The file with every verdict of every detector (JSON), and one label per detector for a whole run.

Labels: TypeAlias = dict[str, str]
"""Level by detector, names ascending."""


def labels_of(events: Timeline, detectors: Sequence[str], settings: SaturationSettings) -> Labels:
    """The level that each detector gave most often in the final window, the worse one where equal.

    Without events there are no labels.
    """
    if not len(events):
        return {}
    first = int(np.searchsorted(events.at_us, events.at_us[-1] - settings.final_window_us))
    return {name: _most_frequent(DETECTORS[name](events, first, settings).levels) for name in sorted(detectors)}


def _most_frequent(levels: Ints) -> str:
    counts = np.bincount(levels, minlength=len(Level))
    return max(Level, key=lambda level: (counts[level], level)).name


def write_report(
    path: Path | str, events: Timeline, detectors: Sequence[str], settings: SaturationSettings, labels: Labels
) -> None:
    """Write the final labels, and each detector's verdict after each event. Raises TraceError."""
    verdicts = {name: DETECTORS[name](events, 0, settings) for name in detectors} if len(events) else {}
    write_json(path, {"final": labels, "trace": _records(events, verdicts)}, end="\n")


def _records(events: Timeline, verdicts: Mapping[str, Verdicts]) -> Iterator[dict[str, Any]]:
    for place, at_us in enumerate(events.at_us.tolist()):
        for name, each in verdicts.items():
            yield {"timestamp": at_us, "detector": name, "result": _result(each, place)}


def _result(verdicts: Verdicts, place: int) -> dict[str, Any]:
    has_signals = place >= verdicts.num_without_signals
    return {
        "level": Level(verdicts.levels[place]).name,
        "score": float(verdicts.scores[place]),
        "confidence": float(verdicts.confidences[place]),
        "signals": {key: float(values[place]) for key, values in verdicts.signals.items()} if has_signals else {},
    }
