"""Intervals of the figures of a simulated run: by coefficients that the server might have as well, and by chance.

Each draw has coefficients within what `blis fit` states, a server that is a little faster or slower than others of its
kind, in all steps and in arithmetic, and another phase of the engine's steps.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from replay.simulation.record import NEVER, Floats, Record

if TYPE_CHECKING:
    from blis_sim.engine.latency.model import LatencyModel
    from replay.simulation.uncertainty import Drawing

COVERED = (5.0, 95.0)
"""Percentiles between which a figure of the server lies in nine cases of ten."""
_FIGURES: dict[str, Callable[[Floats], float]] = {
    "mean": lambda each: float(each.mean()),
    "p50": lambda each: float(np.percentile(each, 50)),
    "p90": lambda each: float(np.percentile(each, 90)),
    "p99": lambda each: float(np.percentile(each, 99)),
}


def drawn_latencies(drawing: "Drawing", num_draws: int, seed: int) -> "Iterator[LatencyModel]":
    """Yield the latency models of so many draws."""
    for number in range(num_draws):
        generator = np.random.default_rng([seed, number])
        speed = 1.0 + drawing.servers.speed * float(generator.standard_normal())
        yield PhaseShifted(SlowedLatency(drawing.draw(generator), speed), number + 1)


def figures_of(record: Record) -> dict[str, float]:
    """Return the figures of a run, in milliseconds; none of a run in which nothing was completed."""
    figures: dict[str, float] = {}
    for metric, values in (("TTFT", record.ttft_us), ("E2E", record.e2e_us), ("ITL", record.itl_mean_us)):
        known = values[record.is_completed & (values != NEVER)].astype(np.float64)
        if len(known):
            figures |= {f"{metric} {name}": figure(known) / 1e3 for name, figure in _FIGURES.items()}
    return figures


def intervals_of(runs: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Return for each figure that all runs have, between which values it lies in nine runs of ten."""
    names = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    figures = [[run[name] for name in names] for run in runs]
    # Between the positions of Weibull lie nine further runs of ten, on average: few draws need no less than 19.
    low, high = np.percentile(figures, COVERED, axis=0, method="weibull") if names else ((), ())
    return {name: (float(one), float(other)) for name, one, other in zip(names, low, high, strict=True)}


def interval_lines(figures: dict[str, float], intervals: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Yield a line for each figure of the prediction with its interval, in milliseconds."""
    yield "90 % intervals, in ms"
    for name, (low, high) in intervals.items():
        yield f"{name:<10} {figures.get(name, float('nan')):>10.2f}  {low:>10.2f} to {high:>10.2f}"
