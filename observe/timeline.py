"""A run over time: a picture of TTFT, ITL and throughput by intervals of equal length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from observe.figures import RequestLog

if TYPE_CHECKING:
    from blis_sim.report.figures import Panel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MAX_INTERVALS = 100
_NANOS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Figures by interval, `starts_s` after the first sending; percentiles are NaN where an interval has nothing.

    A request counts for TTFT when it was sent, a gap between tokens when it ends, a completed request when it ended.
    """

    width_s: float
    starts_s: Floats
    sent_s: Floats
    """Send time of each answered request."""
    ttft_ms: Floats
    """Time to first token of each answered request."""
    ttft_p50_ms: Floats
    ttft_p99_ms: Floats
    itl_p50_ms: Floats
    itl_p99_ms: Floats
    output_tokens_per_s: Floats
    requests_per_s: Floats


def timeline_of(log: RequestLog) -> Timeline:
    """The timeline of a log with at least one request."""
    origin = int(log.column("sent").min())
    is_ok, sent_s = log.is_ok, _seconds(log.column("sent"), origin)
    ended_s = _seconds(log.column("ended"), origin)
    width_s = interval_s(float(ended_s.max()))
    num_intervals = int(ended_s.max() / width_s) + 1
    ttft_ms = log.latencies["ttft"] / 1e6
    is_known = ~np.isnan(ttft_ms)
    ends, lengths = log.gaps
    gap_ends_s, gaps_ms = _seconds(ends, origin), lengths / 1e6
    ttft_p50, ttft_p99 = _percentiles(sent_s[is_known], ttft_ms[is_known], width_s, num_intervals)
    itl_p50, itl_p99 = _percentiles(gap_ends_s, gaps_ms, width_s, num_intervals)
    tokens, counts = log.column("output_tokens"), log.column("num_token_times")
    per_event = np.repeat(tokens / np.maximum(counts, 1), counts)
    came = _counts(_seconds(log.token_times, origin), width_s, num_intervals, per_event)
    is_whole = counts == 0
    whole = _counts(
        _seconds(log.column("ended")[is_whole], origin), width_s, num_intervals, tokens[is_whole].astype(np.float64)
    )
    return Timeline(
        width_s=width_s,
        starts_s=np.arange(num_intervals, dtype=np.float64) * width_s,
        sent_s=sent_s[is_known],
        ttft_ms=ttft_ms[is_known],
        ttft_p50_ms=ttft_p50,
        ttft_p99_ms=ttft_p99,
        itl_p50_ms=itl_p50,
        itl_p99_ms=itl_p99,
        output_tokens_per_s=(came + whole) / width_s,
        requests_per_s=_counts(ended_s[is_ok], width_s, num_intervals) / width_s,
    )


def interval_s(duration_s: float) -> float:
    """Return a round interval length that divides a run of this duration into at most 100 intervals."""
    return next(each for each in _round_lengths() if duration_s / each < _MAX_INTERVALS)


def _round_lengths() -> Iterator[float]:
    power = 0.01
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _seconds(instants: Ints, origin: int) -> Floats:
    return (instants - origin) / _NANOS_PER_S


def _counts(at_s: Floats, width_s: float, num_intervals: int, weights: Floats | None = None) -> Floats:
    return np.bincount(_places(at_s, width_s, num_intervals), weights, minlength=num_intervals).astype(np.float64)


def _places(at_s: Floats, width_s: float, num_intervals: int) -> Ints:
    return np.minimum((at_s / width_s).astype(np.int64), num_intervals - 1)


def _percentiles(at_s: Floats, values: Floats, width_s: float, num_intervals: int) -> tuple[Floats, Floats]:
    """The median and the 99th percentile of the values in each interval."""
    places = _places(at_s, width_s, num_intervals)
    in_order = values[np.argsort(places, kind="stable")]
    bounds = np.cumsum(np.bincount(places, minlength=num_intervals))[:-1]
    figures = np.full((2, num_intervals), np.nan)
    for place, each in enumerate(np.split(in_order, bounds)):
        if each.size:
            figures[:, place] = np.percentile(each, (50, 99))
    return figures[0], figures[1]


def panels_of(timeline: "Timeline") -> list["Panel"]:
    """Return TTFT and ITL with their percentiles, throughput, completed requests, and the distribution of TTFT."""
    from blis_sim.report.figures import cdf_panel, time_panel

    middles = timeline.starts_s + timeline.width_s / 2
    per = f"per {timeline.width_s:g} s"
    ttft = {f"median {per}": (middles, timeline.ttft_p50_ms), f"p99 {per}": (middles, timeline.ttft_p99_ms)}
    itl = {f"median {per}": (middles, timeline.itl_p50_ms), f"p99 {per}": (middles, timeline.itl_p99_ms)}
    tokens, requests = (
        {"tokens": (middles, timeline.output_tokens_per_s)},
        {"requests": (middles, timeline.requests_per_s)},
    )
    return [
        time_panel("TTFT by time of sending", "TTFT, ms", ttft, may_be_log=True),
        time_panel("ITL over time", "ITL, ms", itl, may_be_log=True),
        time_panel("Output tokens per second", "output tokens/s", tokens),
        time_panel("Completed requests per second", "requests/s", requests),
        cdf_panel("Distribution of TTFT", "TTFT, ms", {"TTFT": timeline.ttft_ms}),
    ]
