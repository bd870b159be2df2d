"""The pictures of a folder of metrics: latencies, batches, tokens, and how instances were used over time."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.engine.units import Micros
from replay.metrics_dir.recorder import Recorder
from replay.simulation.record import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blis_sim.report.figures import Panel

MOST_LINES = 8
"""Instances with a line of their own in a picture of use over time, as many as there are colours."""
_STRETCHES = 64
"""Stretches of time in which tokens are counted."""
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
    labels = {"ttft": "TTFT", "tbt": "mean ITL per request", "e2e": "E2E", "delay": "scheduling delay"}
    for name, label in labels.items():
        yield _shares(f"Distribution of {label}", f"{label}, ms", 1e3 * np.asarray(recorder.requests[name]))


def _batches(recorder: Recorder) -> Iterator["Panel"]:
    size, seconds = (np.asarray(recorder.batches[name]) for name in ("size", "seconds"))
    yield _shares("Requests in a batch", "requests in a batch", size, "share of batches")
    yield _shares("Time of a batch", "time of a batch, ms", 1e3 * seconds, "share of batches")


def _tokens(recorder: Recorder, until: Micros) -> Iterator["Panel"]:
    from blis_sim.report.figures import time_panel

    ended_us, tokens, prompts = (np.asarray(recorder.batches[name]) for name in ("ended_us", "tokens", "prompt_tokens"))
    yield _shares("Tokens in a batch", "tokens in a batch", tokens, "share of batches")
    courses = {
        name: per_second(ended_us, counts, until)
        for name, counts in (("prompt tokens", prompts), ("decodes", tokens - prompts))
    }
    yield time_panel("Tokens computed per second", "tokens/s", courses)


def per_second(instants_us: Floats, counts: Floats, until: Micros) -> tuple[Floats, Floats]:
    """Return the middle of each stretch of time in seconds, and how much is counted in it per second."""
    edges = np.linspace(0.0, max(until, 1), _STRETCHES + 1)
    sums, _ = np.histogram(instants_us, edges, weights=counts)
    return (edges[1:] + edges[:-1]) / 2e6, sums / np.diff(edges) * 1e6


def _utilization(recorder: Recorder, until: Micros) -> Iterator["Panel"]:
    from blis_sim.report.figures import time_panel

    replicas = sorted(recorder.replicas.items())[:MOST_LINES]
    levels = {("KV cache in use", "% of KV blocks"): {f"replica {number}": use.memory for number, use in replicas}}
    for title, label, name in (("Time busy", "% of time", "busy"), ("MFU", "% of peak FLOP/s", "mfu")):
        of_stages = [
            (f"replica {number} stage {stage}" if len(use.stages) > 1 else f"replica {number}", getattr(each, name))
            for number, use in replicas
            for stage, each in enumerate(use.stages)
        ]
        levels[title, label] = dict(of_stages[:MOST_LINES])
    for (title, label), lines in levels.items():
        courses = {name: line.time_series(until) for name, line in lines.items()}
        yield replace(time_panel(title, label, courses or {"": (np.zeros(0), np.zeros(0))}), inches=_WIDE_INCHES)


def _shares(title: str, label: str, values: Floats, of: str = "share of requests") -> "Panel":
    """Return the share of a sample up to each value, with its median and its p99."""
    from blis_sim.report.figures import MUTED, cdf_panel

    panel = cdf_panel(title, label, {"": values})

    def draw(axes: "Axes") -> None:
        panel.draw(axes)
        marks = np.percentile(values, (50, 99)).tolist() if len(values) else ()
        for name, value, dashes in zip(("median", "p99"), marks, ((0, (4, 3)), (0, (1, 2))), strict=False):
            words = f"{name} {value:,.0f}" if value >= 1000 else f"{name} {value:.3g}"
            axes.axvline(value, color=MUTED, linewidth=0.9, linestyle=dashes, label=words)

    return replace(panel, draw=draw, y_label=of)
