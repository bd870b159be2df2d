"""The panels of a comparison: throughput, time to the first token and queue depth over time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blis_sim.bench.compare.figures import queue_depth
from blis_sim.bench.compare.measuring import Run
from blis_sim.bench.compare.sides import Side
from blis_sim.pictures.panels import cdf_panel, time_panel
from blis_sim.pictures.style import Panel, draw_panels

_BINS = 44


def draw(sides: Sequence[Side], runs: Sequence[Run], path: str) -> None:
    """Draw one run of each side to a file in the format of its suffix. Raises TraceError."""
    draw_panels(panels_of(sides, runs), path)


def panels_of(sides: Sequence[Side], runs: Sequence[Run]) -> list[Panel]:
    """Return throughput, time to the first token, queue and missed deadlines over time, and how TTFT is distributed."""
    end_s = max((float(np.nanmax(run.ended_s, initial=0.0)) for run in runs), default=0.0) or 1.0
    edges = np.linspace(0, end_s, _BINS + 1)
    middles, width_s = (edges[1:] + edges[:-1]) / 2, end_s / _BINS
    rates, halves, tails, depths, late, ttfts = ({} for _ in range(6))
    for side, run in zip(sides, runs, strict=True):
        tokens, _ = np.histogram(run.token_s, edges, weights=run.token_counts)
        missed, _ = np.histogram(run.arrived_s[run.late], edges)
        rates[side.name] = (middles, tokens / width_s)
        halves[side.name] = (middles, np.array(_ttft_ms(run, edges, 50)))
        tails[side.name] = (middles, np.array(_ttft_ms(run, edges, 99)))
        depths[side.name] = (edges, np.array([queue_depth(run, float(at_s)) for at_s in edges], np.float64))
        late[side.name] = (edges[1:], np.cumsum(missed).astype(np.float64))
        ttfts[side.name] = ((run.first_s - run.arrived_s)[np.isfinite(run.first_s)]) * 1000
    panels = [
        time_panel("Output tokens per second", "output tokens/s", rates),
        time_panel("Median TTFT by arrival", "TTFT, ms", halves, may_be_log=True),
        time_panel("p99 TTFT by arrival", "TTFT, ms", tails, may_be_log=True),
        time_panel("Requests waiting", "requests", depths, is_stepped=True),
        cdf_panel("Distribution of TTFT", "TTFT, ms", ttfts),
    ]
    if any(run.late.any() for run in runs):
        panels.append(time_panel("Deadlines missed so far", "requests", late, is_stepped=True))
    return panels


def _ttft_ms(run: Run, edges: npt.NDArray[np.float64], percent: int) -> list[float]:
    """A percentile of the time to the first token by when requests arrived; not a number where none did."""
    seen = np.isfinite(run.first_s)
    places = np.digitize(run.arrived_s[seen], edges) - 1
    waits_ms = (run.first_s - run.arrived_s)[seen] * 1000
    groups = [waits_ms[places == place] for place in range(len(edges) - 1)]
    return [float(np.percentile(group, percent)) if len(group) else float("nan") for group in groups]
