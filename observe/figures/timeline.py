"""A run over time: intervals of equal length, and a picture of TTFT, ITL and throughput."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from observe.figures.request_log import RequestLog
from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_INTERVALS = 100
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
    origin = int(log.sent.min())
    is_ok, sent_s = log.is_ok, _seconds(log.sent, origin)
    ended_s = _seconds(log.ended, origin)
    width_s = interval_s(float(ended_s.max()))
    num_intervals = int(ended_s.max() / width_s) + 1
    ttft_ms = log.latencies["ttft"] / 1e6
    is_known = ~np.isnan(ttft_ms)
    gap_ends_s, gaps_ms = _gaps(log, origin)
    ttft_p50, ttft_p99 = _percentiles(sent_s[is_known], ttft_ms[is_known], width_s, num_intervals)
    itl_p50, itl_p99 = _percentiles(gap_ends_s, gaps_ms, width_s, num_intervals)
    return Timeline(
        width_s=width_s,
        starts_s=np.arange(num_intervals, dtype=np.float64) * width_s,
        sent_s=sent_s[is_known],
        ttft_ms=ttft_ms[is_known],
        ttft_p50_ms=ttft_p50,
        ttft_p99_ms=ttft_p99,
        itl_p50_ms=itl_p50,
        itl_p99_ms=itl_p99,
        output_tokens_per_s=_tokens(log, origin, width_s, num_intervals) / width_s,
        requests_per_s=_counts(ended_s[is_ok], width_s, num_intervals) / width_s,
    )


def interval_s(duration_s: float) -> float:
    """A round length of which a run of this duration has at most 100."""
    return next(each for each in _round_lengths() if duration_s / each < _MOST_INTERVALS)


def _round_lengths() -> Iterator[float]:
    power = 0.01
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _seconds(instants: Ints, origin: int) -> Floats:
    return (instants - origin) / _NANOS_PER_S


def _gaps(log: RequestLog, origin: int) -> tuple[Floats, Floats]:
    """When each gap between two tokens of a request ended, and how long it was in milliseconds."""
    ends, lengths = log.gaps
    return _seconds(ends, origin), lengths / 1e6


def _tokens(log: RequestLog, origin: int, width_s: float, num_intervals: int) -> Floats:
    """Tokens per interval: those of a request spread evenly over its events, or all at its end if it had none."""
    tokens, counts = log.output_tokens, log.num_token_times
    per_event = np.repeat(tokens / np.maximum(counts, 1), counts)
    came = _counts(_seconds(log.token_times, origin), width_s, num_intervals, per_event)
    is_whole = counts == 0
    whole = _counts(_seconds(log.ended[is_whole], origin), width_s, num_intervals, tokens[is_whole].astype(np.float64))
    return came + whole


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


def save(figure: "Figure", path: str) -> None:
    """Write a figure to a file in the format of its suffix, .png, .svg or .pdf. Raises TraceError."""
    from matplotlib import rc_context

    kind = Path(path).suffix.removeprefix(".")
    # The date of today, under the name that the format has for it.
    metadata: dict[str, Any] = {} if kind == "png" else {"CreationDate" if kind == "pdf" else "Date": None}
    # Not straight to the file: matplotlib does not get over one that cannot be written.
    picture = BytesIO()
    with rc_context({"svg.hashsalt": "blis"}):
        figure.savefig(picture, format=kind, metadata=metadata)
    write_content(Path(path), picture.getvalue())


_MEDIAN, _TAIL, _DOTS = "#4f81bd", "#d62728", "#a6a6a6"


def draw(timeline: "Timeline", path: str) -> None:
    """Draw to a file in the format of its suffix. Raises TraceError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    ttft, itl, throughput = figure.subplots(3, 1, sharex=True)
    ttft.plot(timeline.sent_s, timeline.ttft_ms, ".", color=_DOTS, markersize=2, label="a request", rasterized=True)
    _draw_percentiles(ttft, timeline, timeline.ttft_p50_ms, timeline.ttft_p99_ms)
    ttft.set(ylabel="TTFT, ms, by time of sending")
    _draw_percentiles(itl, timeline, timeline.itl_p50_ms, timeline.itl_p99_ms)
    itl.set(ylabel="ITL, ms")
    throughput.stairs(timeline.output_tokens_per_s, _edges(timeline), color=_MEDIAN)
    throughput.set(xlabel="seconds since the first request", ylabel="output tokens/s")
    requests = throughput.twinx()
    requests.stairs(timeline.requests_per_s, _edges(timeline), color=_TAIL)
    requests.set_ylabel("completed requests/s", color=_TAIL)
    requests.set_ylim(bottom=0)
    for axes in (ttft, itl, throughput):
        axes.set_ylim(bottom=0)
        axes.spines[["top"]].set_visible(False)
    save(figure, path)


def _draw_percentiles(axes: "Axes", timeline: "Timeline", p50: "Floats", p99: "Floats") -> None:
    middles = timeline.starts_s + timeline.width_s / 2
    axes.plot(middles, p50, "-", marker=".", color=_MEDIAN, label="median")
    axes.plot(middles, p99, "-", marker=".", color=_TAIL, label="p99")
    axes.legend(frameon=False, loc="lower right", ncols=3, title=f"per {timeline.width_s:g} s")


def _edges(timeline: "Timeline") -> list[float]:
    return [*timeline.starts_s.tolist(), timeline.starts_s[-1] + timeline.width_s]
