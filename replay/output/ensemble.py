"""One prediction from several runs: the mean over phases of the engine's steps, and intervals of figures.

How long a request waits for the step under way to end is chance, in a real server as well. The mean over the phases
predicts one request better than any single run does. The mean also varies less than single runs do. Figures over all
requests, percentiles above all, are therefore means over the figures of single runs. For intervals each draw has
coefficients within the error that `blis fit` states, and another phase of the engine's steps. Each draw is also a
server a little faster or slower than others of its kind, in all steps and in arithmetic.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from blis_sim.options.addition import sequential_sum
from replay.output.metrics import JsonObject
from replay.simulation.record import NEVER, Floats, Ints, Record

if TYPE_CHECKING:
    from blis_sim.engine.latency.confidence import Sureness
    from blis_sim.engine.latency.model import LatencyModel
    from replay.simulation.uncertainty import LatencySampler


def averaged(runs: Sequence[Record]) -> Record:
    """Return the first run's record with each request's mean times over `runs`, which have equal requests in any order.

    A request that did not complete in all runs keeps the times of the first run.
    """
    first = runs[0]
    places = [_places_in_run(first, run) for run in runs]
    in_all = np.all([run.is_completed[order] for run, order in zip(runs, places, strict=True)], axis=0)

    def mean(name: str) -> Floats:
        columns = [getattr(run, name)[order] for run, order in zip(runs, places, strict=True)]
        means: Floats = np.where(in_all, np.mean(columns, axis=0), columns[0])
        return means

    names = ("arrived_at", "ttft_us", "e2e_us", "scheduling_delay_us")
    arrived_at, ttft_us, e2e_us, delay_us = (np.rint(mean(name)).astype(np.int64) for name in names)
    return first.with_times(arrived_at, ttft_us, e2e_us, mean("itl_mean_us"), delay_us)


def _places_in_run(first: Record, run: Record) -> Ints:
    """Return the index in `run` of each request of `first`; -1 for requests that did not arrive in `run`."""
    place_of = {request_id: place for place, request_id in enumerate(run.ids)}
    return np.array([place_of.get(request_id, NEVER) for request_id in first.ids], np.int64)


def mean_metrics(runs: Sequence[JsonObject]) -> JsonObject:
    """Each figure's mean over `runs`; whole if it is whole in all of them and the mean is. Lists keep their length."""
    return {key: _mean_of(first, [run.get(key, 0) for run in runs]) for key, first in max(runs, key=len).items()}


def _mean_of(first: object, values: list[Any]) -> object:
    if isinstance(first, str):
        return first
    if isinstance(first, list):
        return [_mean_number(list(places)) for places in zip(*values, strict=True)]
    return _mean_number(values)


def _mean_number(values: list[float]) -> float:
    total = sequential_sum(values)
    if all(isinstance(value, int) for value in values) and total % len(values) == 0:
        return total // len(values)
    return total / len(values)


INTERVAL_PERCENTILES = (5.0, 95.0)
"""Percentiles between which a figure of the server lies in nine cases of ten."""
_FIGURES: dict[str, Callable[[Floats], float]] = {
    "mean": lambda each: float(each.mean()),
    "p50": lambda each: float(np.percentile(each, 50)),
    "p90": lambda each: float(np.percentile(each, 90)),
    "p99": lambda each: float(np.percentile(each, 99)),
}


def sampled_latency_models(latency_sampler: "LatencySampler", num_draws: int, seed: int) -> "Iterator[LatencyModel]":
    """Yield `num_draws` latency models with coefficients drawn at random."""
    for number in range(num_draws):
        generator = np.random.default_rng([seed, number])
        speed = 1.0 + latency_sampler.servers.speed * float(generator.standard_normal())
        yield PhaseShifted(SlowedLatency(latency_sampler.draw(generator), speed), number + 1)


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
    low, high = np.percentile(figures, INTERVAL_PERCENTILES, axis=0, method="weibull") if names else ((), ())
    return {name: (float(one), float(other)) for name, one, other in zip(names, low, high, strict=True)}


_METRICS = {"TTFT": "ttft", "ITL": "itl", "E2E": "throughput"}
"""The name of each figure where commands state how sure predictions are."""


def stated_intervals(figures: dict[str, float], sureness: "Sureness") -> dict[str, tuple[float, float]]:
    """Return for each figure between which values nine servers of ten lie that are as unlike those measured."""
    from blis_sim.engine.latency.confidence import is_waiting  # few runs have intervals

    waiting = is_waiting(figures.get("TTFT mean", 0.0), figures.get("E2E mean", 0.0))
    found = {
        name: sureness.interval_ms(_METRICS[name.split()[0]], value, 0.9, waiting=waiting)
        for name, value in figures.items()
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def interval_lines(figures: dict[str, float], intervals: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Yield a line for each figure of the prediction with its interval, in milliseconds."""
    yield "90 % intervals, in ms"
    for name, (low, high) in intervals.items():
        yield f"{name:<10} {figures.get(name, float('nan')):>10.2f}  {low:>10.2f} to {high:>10.2f}"
