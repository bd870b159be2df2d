"""The picture of a run: TTFT, ITL and throughput over time."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from observe.figures.timeline import Floats, Timeline


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
