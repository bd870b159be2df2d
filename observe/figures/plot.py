"""The picture of a run: TTFT, ITL and throughput over time."""

from typing import TYPE_CHECKING

from observe.figures.picture import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from observe.figures.timeline import Floats, Timeline

_MEDIAN, _TAIL, _DOTS = "#4f81bd", "#d62728", "#a6a6a6"


def draw(timeline: "Timeline", path: str) -> None:
    """Draw to a file whose suffix says the format. Raises TraceError."""
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
