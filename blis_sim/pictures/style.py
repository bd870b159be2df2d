"""The style of all pictures: colours for colour-blind readers, titles, units, legends beside the data."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """One picture: its title, the labels of its axes with units, and the function that draws the data."""

    title: str
    x_label: str
    y_label: str
    draw: Callable[["Axes"], None]
    inches: tuple[float, float] = field(default=PANEL_INCHES)


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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    picture = BytesIO()
    with rc_context(rc_params(panel.title)):
        figure = Figure(figsize=panel.inches, layout="constrained")
        style_axes(figure.add_subplot(), panel, with_title=False)
        figure.savefig(picture, format="svg", metadata={"Date": None}, transparent=True, dpi=_DOTS_PER_INCH)
    text = compact(picture.getvalue().decode())
    return use_css_variables(text[text.index("<svg") :])


def compact(svg: str) -> str:
    """Return an SVG whose paths have two decimals, a seventieth of a point, which halves it."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"([.][0-9]{2})[0-9]+", r"\1", path[0]), svg)


def use_css_variables(svg: str) -> str:
    """Replace the colours of the style by CSS variables."""
    names = {INK: "ink", MUTED: "muted", GRID: "grid", TARGET: "target"}
    names |= {color: f"c{number}" for number, color in enumerate(COLORS)}
    for color, name in names.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg


def style_axes(axes: "Axes", panel: Panel, with_title: bool = True) -> None:
    """Draw a panel with its labels, and its legend above the data."""
    panel.draw(axes)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
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
