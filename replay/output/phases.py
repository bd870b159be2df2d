"""One prediction from several runs that differ in the phase of the engine's steps alone.

How long a request waits for the step under way to end is chance, in a real server as well. The mean over the phases
predicts one request better than any single run does. The mean also varies less than single runs do, so figures over all
requests, percentiles above all, are those of the single runs, averaged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_sim.options.addition import added_up
from replay.output.metrics import JsonObject
from replay.simulation.record import NEVER, Floats, Ints, Record


def averaged(runs: Sequence[Record]) -> Record:
    """The first run's record with each request's mean times over `runs`, which have the same requests in any order.

    A request that did not complete in all of them is as in the first.
    """
    first = runs[0]
    places = [_places(first, run) for run in runs]
    in_all = np.all([run.is_completed[order] for run, order in zip(runs, places, strict=True)], axis=0)

    def mean(name: str) -> Floats:
        columns = [getattr(run, name)[order] for run, order in zip(runs, places, strict=True)]
        means: Floats = np.where(in_all, np.mean(columns, axis=0), columns[0])
        return means

    names = ("arrived_at", "ttft_us", "e2e_us", "scheduling_delay_us")
    arrived_at, ttft_us, e2e_us, delay_us = (_whole(mean(name)) for name in names)
    return first.with_times(arrived_at, ttft_us, e2e_us, mean("itl_mean_us"), delay_us)


def _places(first: Record, run: Record) -> Ints:
    """Where the requests of `first` are in `run`; -1 does for those that never arrived there, for they did not end."""
    place_of = {request_id: place for place, request_id in enumerate(run.ids)}
    return np.array([place_of.get(request_id, NEVER) for request_id in first.ids], np.int64)


def _whole(values: Floats) -> Ints:
    return np.rint(values).astype(np.int64)


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
    total = added_up(values)
    if all(isinstance(value, int) for value in values) and total % len(values) == 0:
        return total // len(values)
    return total / len(values)
