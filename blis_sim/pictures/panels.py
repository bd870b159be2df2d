"""Panels that several commands draw: distributions, figures over time, frontiers, heat maps and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blis_sim.pictures.style import (
    COLORS,
    INK,
    MUTED,
    Panel,
    draw_panels,
    start_axis_at_zero,
    target_line,
    use_log_scale_if_wide,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_MOST_POINTS = 160
_TAIL_POINTS = 40
_MOST_ROWS_WITH_NAMES = 24


@dataclass(frozen=True, slots=True)
class Target:
    """A limit to draw, with its text in the legend."""

    value: float
    words: str


def cdf_panel(title: str, x_label: str, samples: Mapping[str, Floats], targets: Sequence[Target] = ()) -> Panel:
    """Return the share of each sample up to each value."""

    def draw(axes: "Axes") -> None:
        for name, values in samples.items():
            if len(values):
                axes.plot(*_cdf(np.sort(values)), drawstyle="steps-post", label=name if len(samples) > 1 else None)
        for target in targets:
            target_line(axes, target.value, target.words, is_vertical=True)
        drawn = [float(each) for values in samples.values() if len(values) for each in (values.min(), values.max())]
        use_log_scale_if_wide(axes, "x", drawn)
        axes.set_ylim(0, 1.02)

    return Panel(title=title, x_label=x_label, y_label="share of requests", draw=draw)


def _cdf(ascending: Floats) -> tuple[Floats, Floats]:
    """Return values and shares, of a large sample at so many ranks only, the extremes among them."""
    even = np.linspace(0, len(ascending) - 1, min(len(ascending), _MOST_POINTS))
    tail = np.arange(max(0, len(ascending) - _TAIL_POINTS), len(ascending))
    ranks = np.unique(np.concatenate([even, tail]).astype(np.int64))
    return ascending[ranks], (ranks + 1) / len(ascending)


def time_panel(
    title: str,
    y_label: str,
    lines: Mapping[str, tuple[Floats, Floats]],
    targets: Sequence[Target] = (),
    is_stepped: bool = False,
    may_be_log: bool = False,
) -> Panel:
    """Return figures over time: for each name instants in seconds and values."""

    def draw(axes: "Axes") -> None:
        for name, (at_s, values) in lines.items():
            style = "steps-post" if is_stepped else "default"
            axes.plot(at_s, values, label=name if len(lines) > 1 else None, drawstyle=style)
        for target in targets:
            target_line(axes, target.value, target.words)
        drawn = np.concatenate([values[np.isfinite(values)] for _, values in lines.values()])
        if may_be_log:
            use_log_scale_if_wide(axes, "y", drawn.tolist())
        else:
            start_axis_at_zero(axes, "y")
        start_axis_at_zero(axes, "x")

    return Panel(title=title, x_label="seconds since the start", y_label=y_label, draw=draw)


def heat_panel(title: str, rows: Sequence[str], end_s: float, values: Floats, value_label: str) -> Panel:
    """Return a heat map with a row for each name, over time."""

    def draw(axes: "Axes") -> None:
        image = axes.imshow(
            values, aspect="auto", cmap="viridis", extent=(0, end_s, len(rows) - 0.5, -0.5), vmin=0,
            interpolation="nearest",
        )  # fmt: skip
        axes.grid(visible=False)
        step = max(1, -(-len(rows) // _MOST_ROWS_WITH_NAMES))
        axes.set_yticks(range(0, len(rows), step), list(rows)[::step], fontsize=8)
        bar = axes.figure.colorbar(image, ax=axes, label=value_label)
        bar.outline.set_visible(False)

    height = min(7.0, max(2.2, 0.9 + 0.24 * len(rows)))
    return Panel(title=title, x_label="seconds since the start", y_label="", draw=draw, inches=(4.6, height))


def bar_panel(
    title: str,
    x_label: str,
    bars: Mapping[str, float],
    words: Mapping[str, str],
    target: Target | None = None,
) -> Panel:
    """Return horizontal bars, the first at the top, each with its words; without a target the first is set apart."""

    def draw(axes: "Axes") -> None:
        names = list(bars)
        colors = [COLORS[1] if not place and target is None else COLORS[0] for place in range(len(names))]
        axes.barh(range(len(names)), list(bars.values()), color=colors, height=0.6)
        for place, name in enumerate(names):
            axes.annotate(
                words.get(name, ""), (bars[name], place), xytext=(4, 0), textcoords="offset points", va="center",
                fontsize=8, color=INK,
            )  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if target is not None:
            target_line(axes, target.value, target.words, is_vertical=True)
        most = max([*bars.values(), *([target.value] if target is not None else [])], default=1.0)
        axes.set_xlim(0, 1.4 * most)

    height = max(2.0, 0.9 + 0.34 * len(bars))
    return Panel(title=title, x_label=x_label, y_label="", draw=draw, inches=(4.6, height))


@dataclass(frozen=True, slots=True)
class Points:
    """Points that belong together: more of `x` is better, less of `y`. A label names each point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


def frontier_panel(
    title: str, x_label: str, y_label: str, curves: Sequence[Points], targets: Sequence[Target] = ()
) -> Panel:
    """Return points with their Pareto frontier as a line; points on the line have names."""

    def draw(axes: "Axes") -> None:
        points = [point for curve in curves for point in zip(curve.x, curve.y, strict=True)]
        best = frontier(points)
        axes.plot(*zip(*best, strict=True), "-", color=MUTED, linewidth=1.0, zorder=1, label="frontier")
        for curve in curves:
            axes.plot(curve.x, curve.y, "o", markersize=4.5, label=curve.name or None)
        _label_points(axes, curves, best)
        for target in targets:
            target_line(axes, target.value, target.words)
        axes.margins(0.14)
        start_axis_at_zero(axes, "x")
        use_log_scale_if_wide(axes, "y", [y for _, y in points])

    return Panel(title=title, x_label=x_label, y_label=y_label, draw=draw)


def _label_points(axes: "Axes", curves: Sequence[Points], best: Sequence[tuple[float, float]]) -> None:
    """Name the points on the frontier: by their labels, or by their curves, whose colours the legend names, too.

    Names of points on the right stand left of them, and so within the panel, which they do not narrow. Points beside
    each other share a name.
    """
    on_frontier = set(best)
    most = max((x for curve in curves for x in curve.x), default=0.0)
    named: list[tuple[str, float]] = []
    for curve in curves:
        for x, y, label in zip(curve.x, curve.y, curve.labels, strict=True):
            words = label or curve.name
            if (x, y) not in on_frontier or any(words == other and abs(x - at) < 0.05 * most for other, at in named):
                continue
            named.append((words, x))
            is_right = 2 * x > most
            text = axes.annotate(
                words, (x, y), xytext=(-4 if is_right else 4, 4), textcoords="offset points",
                ha="right" if is_right else "left", fontsize=6.5, color=INK,
            )  # fmt: skip
            text.set_in_layout(False)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points without another one of more of the first figure and less of the second, ascending."""
    best: list[tuple[float, float]] = []
    least = float("inf")
    for more, less in sorted(points, key=lambda point: (-point[0], point[1])):
        if less < least:
            best.append((more, less))
            least = less
    return best[::-1]


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


def draw_frontier(curves: Sequence[Curve], path: str, title: str = "") -> None:
    """Draw p99 TTFT and ITL, and the cost if there is one, against throughput, to a .png, .svg or .pdf.

    Raises TraceError.
    """
    draw_panels(frontier_panels(curves), path, title)


def frontier_panels(curves: Sequence[Curve], targets: Mapping[str, Sequence[Target]] | None = None) -> list[Panel]:
    """Return a panel for p99 TTFT, p99 ITL and the cost; a line joins the points that no other one beats in both.

    `targets` are by name of the figure: `ttft_ms`, `itl_ms`.
    """
    shown = [
        ("p99 TTFT against throughput", "p99 TTFT, ms", "ttft_ms"),
        ("p99 ITL against throughput", "p99 ITL, ms", "itl_ms"),
    ]
    if any(curve.cost for curve in curves):
        shown.append(("Cost against throughput", "$ per million output tokens", "cost"))
    return [
        frontier_panel(
            title,
            "output tokens/s",
            label,
            [Points(each.name, each.throughput, getattr(each, name), each.labels) for each in curves],
            (targets or {}).get(name, ()),
        )
        for title, label, name in shown
    ]
