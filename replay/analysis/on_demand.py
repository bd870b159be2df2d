"""Figures that a report shows only for some options: priority inversions, fitness, goodput and the CPU tier."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.kv_cache.blis_cache import TieredKVCache
from blis_sim.options.addition import sequential_sum
from replay.analysis.breakdown import groups_of
from replay.simulation.record import NEVER, Floats, Record, distribution, values_of
from traces import SloTargets
from traces.goodput import Goodput, goodput_of, rate
from traces.slo import class_name

_AT_ONCE = 64


def priority_inversions(record: Record) -> int:
    """Count pairs of one class and instance in which the earlier request took more than twice as long as the later.

    Only a scheduling by priority and arrival (`priority-fcfs`) means this not to happen, and each instance schedules
    its own requests alone.
    """
    groups = groups_of(record.rows, "slo_class", class_name)
    arrived_at, e2e_us, instance = record.arrived_at, record.e2e_us.astype(np.float64), record.instance
    by_id = record.by_id
    completed = by_id[record.is_completed[by_id]]
    in_order = completed[np.argsort(arrived_at[completed], kind="stable")]
    return sum(
        _num_inversions(e2e_us[places[instance[places] == number]])
        for _, places in groups.members(in_order)
        for number in np.unique(instance[places])
    )


def _num_inversions(values: Floats) -> int:
    """Count the pairs in which the earlier value is more than twice the later; O(n log^2 n)."""
    if len(values) <= _AT_ONCE:
        return int(np.triu(values[:, np.newaxis] > 2 * values, 1).sum())
    middle = len(values) // 2
    earlier, later = values[:middle], values[middle:]
    num_not_above = np.searchsorted(np.sort(earlier), 2 * later, side="right")
    return _num_inversions(earlier) + _num_inversions(later) + int((middle - num_not_above).sum())


_REFERENCE_RPS = 100.0
_REFERENCE_TOKENS_PER_S = 10_000.0


@dataclass(frozen=True, slots=True)
class Fitness:
    """The weighted sum of scores, and the score of each metric."""

    score: float
    components: dict[str, float]


def fitness(record: Record, weights: Mapping[str, float], output_tokens: int, duration_s: float) -> Fitness:
    """Rates score x / (x + 100 requests/s or 10,000 tokens/s), latencies 1 / (1 + milliseconds), 0 if there is none."""
    num_completed = int(record.is_completed.sum())
    scores = {
        name: per_s / (per_s + reference)
        for name, per_s, reference in (
            ("throughput", rate(num_completed, duration_s), _REFERENCE_RPS),
            ("tokens_per_sec", rate(output_tokens if num_completed else 0, duration_s), _REFERENCE_TOKENS_PER_S),
        )
    }
    for name, column_us in (("ttft", record.ttft_us), ("e2e", record.e2e_us)):
        latencies = distribution(column_us[column_us != NEVER])
        figures = {"mean": latencies.mean, "p50": latencies.percentile(50), "p99": latencies.percentile(99)}
        for figure, value in figures.items():
            scores[f"{figure}_{name}"] = 1 / (1 + value / 1000) if len(latencies) else 0.0
    components = {metric: scores[metric] for metric in weights}
    return Fitness(sequential_sum(weight * components[metric] for metric, weight in weights.items()), components)


def goodput(record: Record, targets: Mapping[str, SloTargets], duration_s: float) -> Goodput:
    """Attainment over the requests that arrived: one that was refused, given up or cut off met no target."""
    values_us = {
        "ttft": record.ttft_us.astype(np.float64),
        "itl": record.itl_mean_us,
        "e2e": record.e2e_us.astype(np.float64),
    }
    slo_classes = list(values_of(record.rows, "slo_class"))
    return goodput_of(values_us, slo_classes, record.is_completed, targets, duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTierFigures:
    """Blocks that the tier took, threw out and gave back, the last also within a millisecond."""

    num_stored: int
    num_evicted: int
    num_fetched: int
    num_thrashed: int
    thrashing_rate: float


def cpu_tier_figures(engines: Iterable[Engine]) -> CpuTierFigures | None:
    """Return the figures of all instances of a finished run; None without a CPU tier. Rates are means."""
    caches = [kv for engine in engines if isinstance(kv := engine.kv, TieredKVCache)]
    if not caches:
        return None
    return CpuTierFigures(
        num_stored=sum(kv.tier.num_stored for kv in caches),
        num_evicted=sum(kv.tier.num_evicted for kv in caches),
        num_fetched=sum(kv.tier.num_fetched for kv in caches),
        num_thrashed=sum(kv.tier.num_thrashed for kv in caches),
        thrashing_rate=sequential_sum(kv.thrashing_rate for kv in caches) / len(caches),
    )
