"""Drift of a server from its prediction: one comparison, and all comparisons as a page and as Prometheus metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from blis_sim.bench.watch.prediction import FIGURES, Interval, ReadingWindow, predicted, window_of
from blis_sim.bench.watch.readings import E2E, OUTPUTS, PROMPTS, TTFT, Reading, increase_between
from blis_sim.engine.deployment import Deployment
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import TextTable
from blis_sim.pictures.page import figures_html, page, table_html
from blis_sim.pictures.style import COLORS, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_REQUESTS = 20
"""Means of fewer ended requests are not compared."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One mean as the server shows it, beside its prediction. In seconds."""

    name: str
    measured_s: float
    interval: Interval

    @property
    def has_drifted(self) -> bool:
        """Whether the measured mean is outside of the interval."""
        return not self.interval.low_s <= self.measured_s <= self.interval.high_s

    @property
    def in_words(self) -> str:
        """The figure and its interval, in milliseconds."""
        low, high = self.interval.low_s * 1e3, self.interval.high_s * 1e3
        return f"{self.name} {self.measured_s * 1e3:,.2f} ({low:,.2f} to {high:,.2f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last minutes of a server against their prediction. `reason` is the reason for missing figures."""

    at_s: float
    window_s: float = 0.0
    num_requests: int = 0
    mean_prompt_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    figures: Sequence[Figure] = ()
    reason: str = ""
    is_up: bool = True
    """Whether the server, or the Prometheus that scrapes it, was read."""

    @property
    def drifted(self) -> Sequence[Figure]:
        """The figures outside of their intervals."""
        return [each for each in self.figures if each.has_drifted]

    @property
    def lines(self) -> Iterator[str]:
        """The comparison in words: one line, and one more for each figure that has drifted."""
        if not self.figures:
            yield self.reason
            return
        figures = ", ".join(each.in_words for each in self.figures)
        yield f"{self.num_requests:,} requests in {self.window_s:,.0f} s, means in ms (predicted): {figures}"
        for each in self.drifted:
            error = each.measured_s / each.interval.mean_s - 1
            yield f"DRIFT: {each.name} is {error:+.1%} off its prediction of {each.interval.mean_s * 1e3:,.2f} ms"


def compare_with_prediction(
    readings: Sequence[Reading],
    deployment: Deployment,
    coefficients: str | None,
    *,
    window_s: float,
    num_draws: int,
    tolerance: float,
) -> Comparison:
    """Compare the last `window_s` of readings with their prediction."""
    window = window_of(readings, window_s)
    at_s = readings[-1].at_s if readings else 0.0
    if window is None:
        return Comparison(at_s, reason="too few readings to compare")
    begin = window.readings[window.start]
    observed = increase_between(begin, readings[-1])
    num_requests = round(observed[E2E].count)
    if num_requests < LEAST_REQUESTS or observed[TTFT].count < 1 or observed[PROMPTS].count < 1:
        return Comparison(at_s, reason=f"too few requests to compare: {num_requests} have ended")
    intervals = predicted(window, deployment, coefficients, num_draws, tolerance)
    return Comparison(
        at_s,
        at_s - begin.at_s,
        num_requests,
        observed[PROMPTS].mean or 0.0,
        observed[OUTPUTS].mean or 0.0,
        list(_figures(window, intervals)),
    )


def _figures(window: ReadingWindow, intervals: Mapping[str, Interval]) -> Iterator[Figure]:
    observed = increase_between(window.readings[window.start], window.readings[-1])
    for name, interval in intervals.items():
        measured = observed[name].mean
        if measured is not None:
            yield Figure(FIGURES[name], measured, interval)


_ROWS = 60
_HELP = (
    ("blis_watch_up", "1 where the server was read, else 0."),
    ("blis_watch_timestamp_seconds", "When the comparison was made, in seconds since 1970."),
    ("blis_watch_requests", "Requests that ended in the window that was compared."),
    ("blis_watch_drift", "1 where the mean is outside of the interval of its prediction, else 0."),
    ("blis_watch_measured_seconds", "Mean that the server shows."),
    ("blis_watch_predicted_seconds", "Predicted mean, and the ends of its interval."),
)


def metrics_text(found: Comparison) -> str:
    """Return the comparison in Prometheus' text format."""
    lines: dict[str, list[str]] = {
        "blis_watch_up": [str(int(found.is_up))],
        "blis_watch_timestamp_seconds": [f"{found.at_s:.3f}"],
        "blis_watch_requests": [str(found.num_requests)],
    }
    for each in found.figures:
        label = f'figure="{each.name.lower()}"'
        lines.setdefault("blis_watch_drift", []).append(f"{{{label}}} {int(each.has_drifted)}")
        lines.setdefault("blis_watch_measured_seconds", []).append(f"{{{label}}} {each.measured_s:.9g}")
        ends = {"mean": each.interval.mean_s, "low": each.interval.low_s, "high": each.interval.high_s}
        lines.setdefault("blis_watch_predicted_seconds", []).extend(
            f'{{{label},value="{name}"}} {value:.9g}' for name, value in ends.items()
        )
    return "".join(_family(name, words, lines[name]) for name, words in _HELP if name in lines)


def _family(name: str, words: str, samples: Sequence[str]) -> str:
    text = f"# HELP {name} {words}\n# TYPE {name} gauge\n"
    return text + "".join(f"{name}{sample if sample.startswith('{') else f' {sample}'}\n" for sample in samples)


def watch_page(url: str, history: Sequence[Comparison], origin: Provenance, refresh_s: float) -> str:
    """Return the page, which a browser loads again every `refresh_s` seconds."""
    with_figures = [each for each in history if each.figures]
    panels = [_panel(name, with_figures) for name in FIGURES.values()] if with_figures else []
    parts = [figures_html(panels)] if panels else []
    parts.append(table_html(_table(history[-_ROWS:][::-1]), "Comparisons, the latest first; means in ms"))
    return page(f"Calibration of {url}", origin, list(_remarks(history[-1])), parts, refresh_s=refresh_s)


def _remarks(found: Comparison) -> Iterator[str]:
    yield from found.lines
    if found.figures and not found.drifted:
        yield "all figures within the intervals of their predictions"


def _table(history: Sequence[Comparison]) -> TextTable:
    titles = ["UTC", "requests", "tokens in", "tokens out"]
    for name in FIGURES.values():
        titles += [name, "predicted", "interval"]
    rows = [
        [*_about_comparison(each), *(cell for name in FIGURES.values() for cell in _cells(each, name))]
        for each in history
    ]
    return TextTable(titles, rows)


def _about_comparison(found: Comparison) -> list[str]:
    at = datetime.fromtimestamp(found.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S") if found.at_s else "-"
    if not found.figures:
        return [at, "-", "-", "-"]
    return [at, f"{found.num_requests:,}", f"{found.mean_prompt_tokens:,.0f}", f"{found.mean_output_tokens:,.0f}"]


def _cells(found: Comparison, name: str) -> list[str]:
    each = _named(found, name)
    if each is None:
        return ["-", "-", "-"]
    low, mean, high = (value * 1e3 for value in (each.interval.low_s, each.interval.mean_s, each.interval.high_s))
    mark = " DRIFT" if each.has_drifted else ""
    return [f"{each.measured_s * 1e3:,.2f}{mark}", f"{mean:,.2f}", f"{low:,.2f} to {high:,.2f}"]


def _named(found: Comparison, name: str) -> Figure | None:
    return next((each for each in found.figures if each.name == name), None)


def _panel(name: str, history: Sequence[Comparison]) -> Panel:
    """Return the measured means over the band of predicted ones."""

    def draw(axes: "Axes") -> None:
        known = [(found.at_s, each) for found in history if (each := _named(found, name)) is not None]
        minutes = [(at_s - history[-1].at_s) / 60 for at_s, _ in known]
        low, high = ([getattr(each.interval, end) * 1e3 for _, each in known] for end in ("low_s", "high_s"))
        axes.fill_between(minutes, low, high, color=COLORS[0], alpha=0.25, linewidth=0, label="predicted")
        axes.plot(minutes, [each.measured_s * 1e3 for _, each in known], "o-", color=COLORS[1], markersize=3,
                  label="measured")  # fmt: skip
        axes.margins(y=0.2)

    return Panel(title=f"Mean {name}", x_label="minutes before the last comparison", y_label="ms", draw=draw)
