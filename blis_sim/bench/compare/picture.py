"""The picture of a comparison: throughput, time to the first token and queue depth over time."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blis_sim.bench.compare.figures import queue_depth
from blis_sim.bench.compare.measuring import Run
from blis_sim.bench.compare.sides import Side
from observe.figures.timeline import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("#4f81bd", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
_BINS = 60


def draw(sides: Sequence[Side], runs: Sequence[Run], path: str) -> None:
    """Draw one run of each side to a file in the format of its suffix. Raises TraceError."""
    save(_figure(sides, runs), path)


def svg(sides: Sequence[Side], runs: Sequence[Run]) -> str:
    """Return the picture as an SVG element."""
    from matplotlib import rc_context

    picture = BytesIO()
    with rc_context({"svg.hashsalt": "blis"}):
        _figure(sides, runs).savefig(picture, format="svg", metadata={"Date": None})
    text = picture.getvalue().decode()
    return text[text.index("<svg") :]


def _figure(sides: Sequence[Side], runs: Sequence[Run]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    rate, waits, depth, late = figure.subplots(4, 1, sharex=True)
    end_s = max((float(np.nanmax(run.ended_s, initial=0.0)) for run in runs), default=0.0) or 1.0
    edges = np.linspace(0, end_s, _BINS + 1)
    middles, width_s = (edges[1:] + edges[:-1]) / 2, end_s / _BINS
    for number, (side, run) in enumerate(zip(sides, runs, strict=True)):
        color = _COLORS[number % len(_COLORS)]
        tokens, _ = np.histogram(run.token_s, edges, weights=run.token_counts)
        rate.plot(middles, tokens / width_s, color=color, label=side.name)
        for percent, style in ((50, "-"), (99, ":")):
            waits.plot(middles, _ttft_ms(run, edges, percent), style, color=color)
        depth.plot(edges, [queue_depth(run, float(at_s)) for at_s in edges], color=color)
        missed, _ = np.histogram(run.arrived_s[run.late], edges)
        late.plot(edges[1:], np.cumsum(missed), color=color)
    rate.set_ylabel("tokens/s")
    rate.legend(loc="upper right")
    waits.set_ylabel("TTFT, ms\n(dotted: p99)")
    waits.set_yscale("log")
    depth.set_ylabel("queue depth")
    late.set_ylabel("deadlines missed\nso far")
    late.set_xlabel("seconds")
    return figure


def _ttft_ms(run: Run, edges: npt.NDArray[np.float64], percent: int) -> list[float]:
    """A percentile of the time to the first token by when requests arrived; not a number where none did."""
    seen = np.isfinite(run.first_s)
    places = np.digitize(run.arrived_s[seen], edges) - 1
    waits_ms = (run.first_s - run.arrived_s)[seen] * 1000
    groups = [waits_ms[places == place] for place in range(len(edges) - 1)]
    return [float(np.percentile(group, percent)) if len(group) else float("nan") for group in groups]
