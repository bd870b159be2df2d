"""The pictures of a folder of metrics: latencies, batches, tokens, and how instances were used over time."""

import io
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from blis_sim.engine.units import Micros
from replay.metrics_dir.recorder import Recorder
from replay.metrics_dir.sketch import Sketch
from replay.metrics_dir.utilization import Level
from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8
"""Instances with a line of their own in a picture of use over time."""


def can_draw() -> bool:
    """Return whether matplotlib is installed, which pictures need."""
    return find_spec("matplotlib") is not None


def draw_pictures(recorder: Recorder, until: Micros) -> None:
    """Draw each picture as PNG and as SVG into the folder `plots`; none without matplotlib. Raises TraceError."""
    if not can_draw():
        return
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder = recorder.folder / "plots"
    folder.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "blis", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        for name, size, draw in _pictures(recorder, until):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
                content = io.BytesIO()
                figure.savefig(content, format=suffix[1:], dpi=110, metadata=metadata)
                write_content(folder / f"{name}{suffix}", content.getvalue())


def _pictures(recorder: Recorder, until: Micros) -> Iterator[tuple[str, tuple[float, float], Any]]:
    figures = recorder.figures
    latencies = [
        ("time to first token (s)", figures.ttft),
        ("mean time between tokens (s)", figures.tbt),
        ("whole request (s)", figures.e2e),
        ("scheduling delay (s)", figures.delay),
    ]
    batches = [
        ("requests in a batch", figures.batch_size),
        ("tokens in a batch", figures.batch_tokens),
        ("time of a batch (s)", figures.batch_time),
    ]
    yield "latencies", (9.0, 5.2), lambda figure: _draw_shares(figure, (2, 2), latencies)
    yield "batches", (9.0, 2.8), lambda figure: _draw_shares(figure, (1, 3), batches)
    yield "utilization", (9.0, 6.0), lambda figure: _draw_use(figure, recorder, until)


def _draw_shares(figure: Any, shape: tuple[int, int], sketches: list[tuple[str, Sketch]]) -> None:
    """Draw the share of the sample up to each value."""
    for axes, (label, sketch) in zip(figure.subplots(*shape, squeeze=False).flat, sketches, strict=True):
        values, shares = sketch.cdf()
        if sketch.count:
            axes.step([sketch.least, *values], [0.0, *shares], where="post")
            _mark(axes, sketch)
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=0)
    figure.supylabel("share")


def _mark(axes: "Axes", sketch: Sketch) -> None:
    values = sketch.quantiles((0.5, 0.99)).tolist()
    for value in values:
        axes.axvline(value, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_title("P50 {:.3g}, P99 {:.3g}".format(*values), fontsize=8)


def _draw_use(figure: Any, recorder: Recorder, until: Micros) -> None:
    replicas = sorted(recorder.replicas.items())[:MOST_LINES]
    rows: list[tuple[str, list[tuple[str, Level]]]] = [
        ("KV cache (%)", [(f"replica {number}", use.memory) for number, use in replicas]),
    ]
    for label, name in (("busy (%)", "busy"), ("MFU (%)", "mfu")):
        lines = [
            (f"replica {number} stage {stage}" if len(use.stages) > 1 else f"replica {number}", getattr(each, name))
            for number, use in replicas
            for stage, each in enumerate(use.stages)
        ]
        rows.append((label, lines[:MOST_LINES]))
    for axes, (label, lines) in zip(figure.subplots(3, 1, sharex=True), rows, strict=True):
        for name, level in lines:
            axes.plot(*level.course(until), label=name, linewidth=1.0)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        if len(lines) > 1:
            axes.legend(fontsize=7, loc="upper right")
    axes.set_xlabel("time (s)")
