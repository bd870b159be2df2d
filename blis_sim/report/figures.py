"""Pictures in one style: colours for colour-blind readers, titles, units, legends beside the data.

matplotlib is loaded when a picture is drawn, not before.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_MOST_POINTS = 160
_TAIL_POINTS = 40
_MOST_ROWS_WITH_NAMES = 24

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""The palette of Okabe and Ito, without its black and yellow, and two more."""
DARK_COLORS = ("#4aa8e0", "#f08a4b", "#3cc79a", "#e6a3c8", "#f2bb4d", "#8bcdf2", "#c9a86a", "#b0b0b0")
INK, MUTED, GRID, TARGET = "#222324", "#66686a", "#d9dbdd", "#b91c1d"
"""Text, lesser text, lines of the grid, lines of targets. A page replaces each by a variable of its style sheet."""

PANEL_INCHES = (4.6, 3.0)
_DOTS_PER_INCH = 130
_SPREAD_OF_LOG = 50
_SPREAD_OF_MANY_TICKS = 300
_COLUMNS = 2
_LEGEND_CHARACTERS = 64
"""Characters beside each other in the legend of a panel."""
_ENTRY_CHARACTERS = 8
"""Room that the mark of an entry and the space behind it take, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture: its title, the labels of its axes with units, and the function that draws the data.

    Without a label the function labels the axis.
    """

    title: str
    x_label: str
    y_label: str
    draw: Callable[["Axes"], None]
    inches: tuple[float, float] = field(default=PANEL_INCHES)
    has_many_points: bool = False
    """Whether a page shows the panel as a PNG, since an SVG of all its points would be large."""


def rc_params(salt: str = "blis") -> Any:
    """Return matplotlib's settings for all pictures; `salt` keeps the ids of two SVGs in one page apart."""
    from matplotlib.rcsetup import cycler

    return {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "text.color": INK,
        "text.parse_math": False,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=COLORS),
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "lines.linewidth": 1.4,
    }


def draw_panels(panels: Sequence[Panel], paths: str | Sequence[str], title: str = "") -> None:
    """Draw panels side by side to a .png, .svg or .pdf or several of these, on white. Raises TraceError.

    Panels that are wider than others stand below each other.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    width, height = panels[0].inches
    num_columns = min(_COLUMNS if width < 2 * PANEL_INCHES[0] else 1, len(panels))
    num_rows = ceil(len(panels) / num_columns)
    with rc_context(rc_params()):
        figure = Figure(figsize=(width * num_columns, height * num_rows + 0.3 * bool(title)), layout="constrained")
        axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for each, panel in zip(axes, panels, strict=False):
            style_axes(each, panel)
        for each in axes[len(panels) :]:
            each.set_axis_off()
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=MUTED)
        for path in [paths] if isinstance(paths, str) else paths:
            save(figure, path)
            figure.set_layout_engine("none")  # the places of all parts are found, and hold for other formats


def panel_svg(panel: Panel) -> str:
    """Return a panel as an SVG element without a background, which takes its colours from the page around it."""
    text = compact(_picture(panel, panel.title, format="svg", metadata={"Date": None}, transparent=True).decode())
    # Replace the colours of the style by CSS variables.
    svg = text[text.index("<svg") :]
    names = {INK: "ink", MUTED: "muted", GRID: "grid", TARGET: "target"}
    names |= {color: f"c{number}" for number, color in enumerate(COLORS)}
    for color, name in names.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg


def panel_png(panel: Panel) -> bytes:
    """Return a panel as a PNG, which without a date or version in it is equal for equal figures."""
    return _picture(panel, "blis", format="png", metadata={"Software": None})


def _picture(panel: Panel, salt: str, **how: Any) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    picture = BytesIO()
    with rc_context(rc_params(salt)):
        figure = Figure(figsize=panel.inches, layout="constrained")
        style_axes(figure.add_subplot(), panel, with_title=False)
        figure.savefig(picture, dpi=_DOTS_PER_INCH, **how)
    return picture.getvalue()


def compact(svg: str) -> str:
    """Return an SVG whose paths have two decimals, a seventieth of a point, which halves it."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"([.][0-9]{2})[0-9]+", r"\1", path[0]), svg)


def style_axes(axes: "Axes", panel: Panel, with_title: bool = True) -> None:
    """Draw a panel with its labels, and its legend above the data."""
    panel.draw(axes)
    axes.set(**{name: text for name, text in (("xlabel", panel.x_label), ("ylabel", panel.y_label)) if text})
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        num_columns = _num_legend_columns(labels)
        rows = ceil(len(labels) / num_columns)
        axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=num_columns, borderaxespad=0.2)
        if with_title:
            axes.set_title(panel.title, pad=8 + 13 * rows)
    elif with_title:
        axes.set_title(panel.title)


def _num_legend_columns(labels: Sequence[str]) -> int:
    """Return the most columns that fit in a panel; matplotlib fills one after the other, the first ones more."""
    for number in range(min(4, len(labels)), 1, -1):
        least, more = divmod(len(labels), number)
        lengths = [least + 1] * more + [least] * (number - more)
        ends = list(accumulate(lengths))
        widest = [max(map(len, labels[end - length : end])) for end, length in zip(ends, lengths, strict=True)]
        if sum(widest) + number * _ENTRY_CHARACTERS <= _LEGEND_CHARACTERS:
            return number
    return 1


def use_log_scale_if_wide(axes: "Axes", name: str, values: Sequence[float]) -> None:
    """Make the axis `x` or `y` logarithmic where its values span decades; a linear y axis begins at 0."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) / min(positive) > _SPREAD_OF_LOG and len(positive) == len(values):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axis = getattr(axes, f"{name}axis")
        getattr(axes, f"set_{name}scale")("log")
        has_few = max(positive) / min(positive) < _SPREAD_OF_MANY_TICKS
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if has_few else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    else:
        start_axis_at_zero(axes, name)


def start_axis_at_zero(axes: "Axes", name: str) -> None:
    """Begin the axis `x` or `y` at zero, with thousands separated."""
    from matplotlib.ticker import FuncFormatter

    if name == "y":
        axes.set_ylim(bottom=0)
    else:
        axes.set_xlim(left=0)
    getattr(axes, f"{name}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def target_line(axes: "Axes", value: float, words: str, is_vertical: bool = False) -> None:
    """Draw a limit, named in the legend."""
    line = axes.axvline if is_vertical else axes.axhline
    line(value, color=TARGET, linewidth=1.1, linestyle=(0, (5, 3)), label=words)


def save(figure: "Figure", path: str) -> None:
    """Write a figure to a file in the format of its suffix, .png, .svg or .pdf. Raises TraceError."""
    from matplotlib import rc_context

    kind = Path(path).suffix.removeprefix(".")
    # The date of today, under the name that the format has for it.
    metadata: dict[str, Any] = {} if kind == "png" else {"CreationDate" if kind == "pdf" else "Date": None}
    # Drawn in memory first: matplotlib handles a file that cannot be written badly.
    picture = BytesIO()
    with rc_context(rc_params()):
        figure.savefig(picture, format=kind, metadata=metadata, dpi=_DOTS_PER_INCH)
    content = picture.getvalue()
    write_content(Path(path), compact(content.decode()).encode() if kind == "svg" else content)


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
                axes.plot(
                    *_cumulative_shares(np.sort(values)),
                    drawstyle="steps-post",
                    label=name if len(samples) > 1 else None,
                )
        for target in targets:
            target_line(axes, target.value, target.words, is_vertical=True)
        drawn = [float(each) for values in samples.values() if len(values) for each in (values.min(), values.max())]
        use_log_scale_if_wide(axes, "x", drawn)
        axes.set_ylim(0, 1.02)

    return Panel(title=title, x_label=x_label, y_label="share of requests", draw=draw)


def _cumulative_shares(ascending: Floats) -> tuple[Floats, Floats]:
    """Return values and shares. A large sample is thinned to some of its ranks, which include the extremes."""
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
