"""The figures of one run, one function for each row of the table, and intervals of their differences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from blis_sim.bench.compare.measuring import DRAIN_S, WINDOW_S, Run

_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Of Student's t at 97.5 %, by degrees of freedom from 1."""
_NORMAL_QUANTILE = 1.96


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table."""

    label: str
    of: Callable[[Run], float]
    digits: int = 1
    divides_first: bool = False
    """Whether the row has the first configuration's value divided by that of each."""

    def value(self, of_seed: Sequence[Run], place: int) -> float:
        """The cell of the configuration at this place, from the runs of all of them with the same requests."""
        value = self.of(of_seed[place])
        if not self.divides_first:
            return value
        return self.of(of_seed[0]) / value if value else 0.0


def throughput(run: Run) -> float:
    """Output tokens per second, from the first arrival to the last token."""
    if not len(run.token_s):
        return 0.0
    span_s = float(run.token_s[-1] - run.arrived_s.min())
    return float(run.token_counts.sum()) / span_s if span_s > 0 else 0.0


def window_throughput(run: Run, at_s: float | None = None) -> float:
    """Output tokens per second of the last ten seconds before an instant, by default two seconds after the load."""
    at_s = run.duration_s + DRAIN_S if at_s is None else at_s
    inside = (run.token_s > at_s - WINDOW_S) & (run.token_s <= at_s)
    return float(run.token_counts[inside].sum()) / WINDOW_S


def ttft_percentile_ms(run: Run, percent: float, until_s: float = math.inf) -> float:
    """A percentile of the time to the first token, of requests that had it by an instant."""
    seen = run.first_s <= until_s
    waits = (run.first_s - run.arrived_s)[seen]
    return float(np.percentile(waits, percent)) * 1000 if len(waits) else 0.0


def mean_tbt_ms(run: Run, until_s: float = math.inf) -> float:
    """Mean time between the tokens of a request."""
    done = (run.ended_s <= until_s) & (run.output_tokens > 1)
    gaps = (run.output_tokens[done] - 1).sum()
    return float((run.ended_s - run.first_s)[done].sum() / gaps) * 1000 if gaps else 0.0


def mean_queue_depth(run: Run) -> float:
    """Mean number of requests that wait to be scheduled for the first time, by Little's law."""
    waits = np.nan_to_num(run.scheduled_s - run.arrived_s)
    span_s = float(np.nanmax(run.ended_s, initial=0.0) - run.arrived_s.min()) if run.submitted else 0.0
    return float(waits.sum()) / span_s if span_s > 0 else 0.0


def queue_depth(run: Run, at_s: float) -> int:
    """Requests that wait to be scheduled for the first time at an instant."""
    return int(((run.arrived_s <= at_s) & ~(run.scheduled_s <= at_s)).sum())


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """The rows for these runs."""
    classes = sorted({name for run in runs for name in run.deadlines.counts})
    rows = [
        Figure("Requests", lambda run: run.submitted, 0),
        Figure("Completed", lambda run: int((run.ended_s >= 0).sum()), 0),
        Figure("Throughput (tok/s)", throughput, 0),
        Figure("Throughput, last 10 s (tok/s)", window_throughput, 0),
        Figure("TTFT p50 (ms)", lambda run: ttft_percentile_ms(run, 50)),
        Figure("TTFT p99 (ms)", lambda run: ttft_percentile_ms(run, 99)),
        Figure("TBT mean (ms)", mean_tbt_ms, 2),
    ]
    if classes:
        rows.append(Figure("SLO violations (%)", lambda run: 100 * run.deadlines.share, 2))
        rows += [Figure(f"SLO violations, {name} (%)", _share_of(name), 2) for name in classes]
    rows += [
        Figure("KV hit rate (%)", lambda run: 100 * run.hit_rate),
        Figure("Preemptions", lambda run: run.preemptions, 0),
        Figure("Queue depth, mean", mean_queue_depth, 2),
    ]
    if any(run.expected_per_draft for run in runs):
        rows += [
            Figure("Accepted per draft", lambda run: run.accepted_per_draft, 2),
            Figure("Accepted per draft, expected", lambda run: run.expected_per_draft, 2),
            Figure("Speed-up of decoding", mean_tbt_ms, 2, divides_first=True),
            Figure("Speed-up of drafts, by formula", lambda run: run.speedup_estimate, 2),
        ]
    return rows


def _share_of(name: str) -> Callable[[Run], float]:
    def share(run: Run) -> float:
        count = run.deadlines.counts.get(name, 0)
        return 100 * run.deadlines.violations.get(name, 0) / count if count else 0.0

    return share


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences, and half the width of its 95 % interval."""

    mean: float
    half_width: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half_width


def paired_difference(first: Sequence[float], other: Sequence[float]) -> Difference | None:
    """How much `other` exceeds `first` in runs with the same requests; None with fewer than two."""
    if len(first) < 2:
        return None
    differences = [after - before for before, after in zip(first, other, strict=True)]
    quantile = _QUANTILES[len(first) - 2] if len(first) - 2 < len(_QUANTILES) else _NORMAL_QUANTILE
    return Difference(fmean(differences), quantile * stdev(differences) / math.sqrt(len(differences)))
