"""The picture of a frontier: what throughput costs in latency, and where a price is known, in money."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from observe.figures.timeline import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FRONTIER = "#d62728"
_MOST_LABELS = 60
_MOST_NAMED_CURVES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points that belong together. Throughput in output tokens per second; a label stands beside each point."""

    name: str
    throughput: Sequence[float]
    ttft_ms: Sequence[float]
    itl_ms: Sequence[float]
    labels: Sequence[str]
    cost: Sequence[float] = ()
    """Dollars per million output tokens, empty where no price is known."""


def draw_frontier(curves: Sequence[Curve], path: str) -> None:
    """Draw p99 TTFT and ITL, and the cost if there is one, against throughput, to a .png, .svg or .pdf.

    A line joins the points that no other one beats in both. Raises TraceError.
    """
    from matplotlib.figure import Figure

    panels = [("p99 TTFT, ms", "ttft_ms"), ("p99 ITL, ms", "itl_ms")]
    if any(curve.cost for curve in curves):
        panels.append(("$ per million output tokens", "cost"))
    figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
    for axes, (title, name) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, curves, name)
        axes.set(xlabel="output tokens/s", ylabel=title)
        axes.margins(0.12)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(curves) <= _MOST_NAMED_CURVES:
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, path)


def _draw_panel(axes: "Axes", curves: Sequence[Curve], name: str) -> None:
    points = [
        (throughput, value)
        for curve in curves
        for throughput, value in zip(curve.throughput, getattr(curve, name), strict=True)
    ]
    best = frontier(points)
    axes.plot(*zip(*best, strict=True), "-", color=_FRONTIER, linewidth=0.8, zorder=1)
    has_room = len(points) <= _MOST_LABELS
    for curve in curves:
        values = getattr(curve, name)
        axes.plot(curve.throughput, values, "o", markersize=4, label=curve.name or None)
        for x, y, label in zip(curve.throughput, values, curve.labels, strict=True):
            if has_room and label:
                axes.annotate(label, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The Pareto frontier: points without another one of more of the first figure and less of the second, ascending."""
    best: list[tuple[float, float]] = []
    least = float("inf")
    for more, less in sorted(points, key=lambda point: (-point[0], point[1])):
        if less < least:
            best.append((more, less))
            least = less
    return best[::-1]
