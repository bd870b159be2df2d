"""Figures of the folder `plots` as Vidur writes them: distributions, running sums, and the use of replicas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.batches import BatchLog, Floats, Ints, entries_of, is_ended, repeats_of
from blis_sim.bench.vidur.catalogue import DEVICES
from blis_sim.bench.vidur.cluster import Cluster, Pool, layer_parameters
from blis_sim.bench.vidur.settings import values_of
from blis_sim.bench.vidur.simulation import Simulated

Values = npt.NDArray[np.float64]
Numbers = Values | npt.NDArray[np.int64]

_FRACTIONS = np.linspace(0, 1, 101)
_ACCURACY = 0.001
"""Largest relative error of a quantile of the original."""
_LEAST = 1e-9
"""Values up to this one have no logarithm in the original."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One file of the folder, and its picture: shares of a sample up to a value, or values over batches or time."""

    name: str
    x_label: str
    y_label: str
    x: Numbers
    y: Numbers
    header: str = ""
    rows: Iterable[str] = ()
    """Empty where there is a picture alone."""
    is_histogram: bool = False
    """Whether `x` is a sample, to be counted in bins."""

    @property
    def has_shares(self) -> bool:
        """Whether `y` is the share of a sample up to `x`."""
        return self.y_label.startswith("share")


def shares_of_requests(name: str, label: str, numbers: Sequence[int], values: Values) -> Curve:
    """Return the share of requests up to the value of each; `numbers` are theirs, in the order of their ends."""
    order = np.argsort(values, kind="stable")
    ascending, shares = values[order], np.arange(1, len(values) + 1) / max(len(values), 1)
    cells = zip(order.tolist(), ascending.tolist(), shares.tolist(), strict=True)
    rows = (f"{place},{numbers[place]},{value!r},{share!r}" for place, value, share in cells)
    return Curve(name, label, "share of requests", ascending, shares, f",Request Id,{name},cdf", rows)


def shares_of_batches(name: str, column: str, label: str, values: Numbers, *, is_original: bool) -> Curve:
    """Return the value below which each hundredth of a sample lies; the original's are off by up to a thousandth."""
    points = _sketched(values) if is_original else np.quantile(values, _FRACTIONS, method="inverted_cdf").astype(float)
    cells = zip(count(), _FRACTIONS.tolist(), points.tolist(), strict=False)
    rows = (f"{place},{share!r},{value!r}" for place, share, value in cells)
    return Curve(name, label, "share of batches", points, _FRACTIONS, f",cdf,{column}", rows)


def series(name: str, x_name: str, y_name: str, labels: tuple[str, str], x: Numbers, y: Numbers) -> Curve:
    """Return values by the number of a batch, or over time."""
    cells = zip(count(), x.tolist(), y.tolist(), strict=False)
    rows = (f"{place},{at!r},{value!r}" for place, at, value in cells)
    return Curve(name, *labels, x, y, f",{x_name},{y_name}", rows)


def _sketched(values: Numbers) -> Values:
    """Return quantiles as a sketch has them that counts values in buckets whose bounds grow by a constant factor.

    Facts: the DDSketch of the package ddsketch.
    """
    gamma = (1 + _ACCURACY) / (1 - _ACCURACY)
    positive = values[values > _LEAST]
    num_zeros = len(values) - len(positive)
    keys, counts = np.unique(np.ceil(np.log(positive) / math.log(gamma) - 1e-12), return_counts=True)
    ranks = _FRACTIONS * (len(values) - 1) - num_zeros
    places = np.searchsorted(np.cumsum(counts), ranks, side="right")
    found = 2 / (1 + gamma) * gamma ** keys[np.minimum(places, len(keys) - 1)] if len(keys) else np.zeros(len(ranks))
    return np.where(ranks < 0, 0.0, found)


_ORIGINAL_TERA = 2**40
"""Operations per second that Vidur takes for a TFLOP/s."""

Use = dict[str, dict[str, float]]
"""Least, largest and mean by the name of a figure."""


def use_of(options: Any, simulated: Simulated) -> Use:
    """Return what each file on the use of a replica or of a stage has.

    The original numbers from 1 and has the first replica and the first stage last.
    """
    cluster, logs = simulated.cluster, simulated.logs
    pools = [pool for pool in cluster.pools for _ in range(pool.num_replicas)]
    until = max([0.0, *(float(ends.max()) for log in logs if len(ends := np.array(log.ends)[is_ended(log)]))])
    found: Use = {}
    for number, (log, pool) in enumerate(zip(logs, pools, strict=True)):
        name = f"replica_{_number(number, len(logs), cluster)}"
        found[f"{name}_memory_usage"] = _memory(log, pool, until, is_original=cluster.is_original)
        stages = _stages(log)
        for stage, (places, starts, ends) in enumerate(stages):
            of_stage = f"{name}_stage_{_number(stage, len(stages), cluster)}"
            full = np.full(len(starts), 100.0)
            figures = {"busy_time_percent": full}
            if cluster.model.experts is None:
                figures["mfu"] = _mfu(options, cluster, pool, log, places, ends - starts)
            for figure, values in figures.items():
                mean = (
                    _original_mean(values, starts, ends) if cluster.is_original else _mean(values, starts, ends, until)
                )
                found[f"{of_stage}_{figure}"] = _summary(0.0, float(values.max(initial=0.0)), mean)
    return dict(sorted(found.items()))


def _number(place: int, count: int, cluster: Cluster) -> int:
    return place if not cluster.is_original else place or count


def _summary(least: float, largest: float, mean: float) -> dict[str, float]:
    return {"min": least, "max": largest, "weighted_mean": mean}


def _memory(log: BatchLog, pool: Pool, until: float, *, is_original: bool) -> dict[str, float]:
    """The KV blocks in use. The mean of the original is that of its samples, whatever time lies between them."""
    share = 100 / pool.limits.num_blocks
    if is_original:
        mean = log.sampled_blocks / (log.num_samples + 1)  # and the 0 before all samples
    else:
        at, blocks = np.array(log.held_at), np.array(log.held_blocks)
        mean = float((blocks * np.diff(np.minimum(at, until), append=until)).sum()) / until if until else 0.0
    return _summary(0.0, log.most_blocks * share, mean * share)


def _stages(log: BatchLog) -> list[tuple[Ints, Floats, Floats]]:
    """Return for each stage the places of its batches in the log, their starts and their ends."""
    if log.stages:
        return [(np.arange(len(each.ends)), np.array(each.starts), np.array(each.ends)) for each in log.stages]
    places = np.flatnonzero(is_ended(log))
    return [(places, np.array(log.starts)[places], np.array(log.ends)[places])]


def _mean(values: Floats, starts: Floats, ends: Floats, until: float) -> float:
    return float((values * (ends - starts)).sum()) / until if until else 0.0


def _original_mean(values: Floats, starts: Floats, ends: Floats) -> float:
    """The original's mean begins with the first change after the instant 0."""
    if not len(starts):
        return 0.0
    counted = starts != 0
    first = float(starts[0]) or float(ends[0])
    span = float(ends[-1]) - first
    return float((values * (ends - starts))[counted].sum()) / span if span else 0.0


def _mfu(options: Any, cluster: Cluster, pool: Pool, log: BatchLog, places: Ints, seconds: Floats) -> Floats:
    """Return the arithmetic of each batch at the peak rate of a GPU, over its time, in percent.

    The original lets each token of a prompt attend to all of them, and counts 2^40 operations for a TFLOP.
    """
    model = cluster.model
    entries, repeats = entries_of(log)[places], repeats_of(log)[places]
    decodes, prompts, contexts, squares, work = (
        np.array(getattr(log, name), np.float64)[entries]
        for name in ("decodes", "prefill_tokens", "contexts", "prefill_squares", "prefill_work")
    )
    contexts += repeats * decodes
    own = squares + decodes if cluster.is_original else (squares + prompts) / 2
    num_layers = model.num_layers // pool.num_stages
    weights = layer_parameters(model, pool.tp) * num_layers
    attention = 4 * num_layers * (model.num_q_heads // pool.tp) * model.head_size
    operations = 2 * weights * (prompts + decodes) + attention * (own + work + contexts)
    tflops = DEVICES[values_of(options, vidur.REPLICA)["device"]][0]
    peak = tflops * (_ORIGINAL_TERA if cluster.is_original else 10**12)
    found: Floats = 100 * operations / np.maximum(seconds, 1e-12) / peak
    return found
