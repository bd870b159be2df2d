"""The pictures of a folder of metrics: latencies, batches, tokens, and how instances were used over time."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.engine.units import Micros
from replay.metrics_dir.recorder import QuantileSketch, RateSeries, Recorder, TimeWeighted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blis_sim.report.figures import Panel

MOST_LINES = 8
"""Instances with a line of their own in a picture of use over time, as many as there are colours."""
_MARKS = (0.5, 0.99)
_WIDE_INCHES = (9.2, 2.4)


def can_draw() -> bool:
    """Return whether matplotlib is installed, which pictures need."""
    return find_spec("matplotlib") is not None


def draw_pictures(recorder: Recorder, until: Micros, title: str = "") -> None:
    """Draw each picture as PNG and as SVG into the folder `plots`; none without matplotlib. Raises TraceError."""
    if not can_draw():
        return
    from blis_sim.report.figures import draw_panels

    folder = recorder.folder / "plots"
    folder.mkdir(exist_ok=True)
    pictures = {
        "latencies": _latencies(recorder),
        "batches": _batches(recorder),
        "tokens": _tokens(recorder, until),
        "utilization": _utilization(recorder, until),
    }
    for name, panels in pictures.items():
        draw_panels(list(panels), [str(folder / f"{name}{suffix}") for suffix in (".png", ".svg")], title)


def _latencies(recorder: Recorder) -> Iterator["Panel"]:
    figures = recorder.figures
    yield _shares("Distribution of TTFT", "TTFT, ms", "requests", figures.ttft, 1e3)
    yield _shares("Distribution of mean ITL per request", "mean ITL per request, ms", "requests", figures.tbt, 1e3)
    yield _shares("Distribution of E2E", "E2E, ms", "requests", figures.e2e, 1e3)
    yield _shares("Distribution of scheduling delay", "scheduling delay, ms", "requests", figures.delay, 1e3)


def _batches(recorder: Recorder) -> Iterator["Panel"]:
    figures = recorder.figures
    yield _shares("Requests in a batch", "requests in a batch", "batches", figures.batch_size)
    yield _shares("Time of a batch", "time of a batch, ms", "batches", figures.batch_time, 1e3)


def _tokens(recorder: Recorder, until: Micros) -> Iterator["Panel"]:
    yield _shares("Tokens in a batch", "tokens in a batch", "batches", recorder.figures.batch_tokens)
    lines = {"prompt tokens": recorder.prompt_tokens, "decodes": recorder.decodes}
    yield _over_time("Tokens computed per second", "tokens/s", lines, until)


def _utilization(recorder: Recorder, until: Micros) -> Iterator["Panel"]:
    replicas = sorted(recorder.replicas.items())[:MOST_LINES]
    memory = {f"replica {number}": use.memory for number, use in replicas}
    yield _over_time("KV cache in use", "% of KV blocks", memory, until, _WIDE_INCHES)
    for title, label, name in (("Time busy", "% of time", "busy"), ("MFU", "% of peak FLOP/s", "mfu")):
        levels = [
            (f"replica {number} stage {stage}" if len(use.stages) > 1 else f"replica {number}", getattr(each, name))
            for number, use in replicas
            for stage, each in enumerate(use.stages)
        ]
        yield _over_time(title, label, dict(levels[:MOST_LINES]), until, _WIDE_INCHES)


def _shares(title: str, label: str, of: str, sketch: QuantileSketch, scale: float = 1.0) -> "Panel":
    """Return the share of a sample up to each value, with its median and its p99."""
    from blis_sim.report.figures import MUTED, Panel, use_log_scale_if_wide

    def draw(axes: "Axes") -> None:
        values, shares = sketch.cdf()
        axes.set_ylim(0, 1.02)
        if not sketch.count:
            return
        axes.plot(scale * np.array([sketch.least, *values]), [0.0, *shares], drawstyle="steps-post")
        for place, value in enumerate((scale * sketch.quantiles(_MARKS)).tolist()):
            words = f"{('median', 'p99')[place]} {f'{value:,.0f}' if value >= 1000 else f'{value:.3g}'}"
            axes.axvline(value, color=MUTED, linewidth=0.9, linestyle=((0, (4, 3)), (0, (1, 2)))[place], label=words)
        use_log_scale_if_wide(axes, "x", [scale * sketch.least, scale * sketch.largest])

    return Panel(title=title, x_label=label, y_label=f"share of {of}", draw=draw)


def _over_time(
    title: str,
    label: str,
    lines: dict[str, TimeWeighted] | dict[str, RateSeries],
    until: Micros,
    inches: tuple[float, float] | None = None,
) -> "Panel":
    """Return figures over time, stretch by stretch."""
    from dataclasses import replace

    from blis_sim.report.figures import time_panel

    courses = {name: line.time_series(until) for name, line in lines.items()}
    panel = time_panel(title, label, courses) if courses else time_panel(title, label, {"": (np.zeros(0), np.zeros(0))})
    return panel if inches is None else replace(panel, inches=inches)
