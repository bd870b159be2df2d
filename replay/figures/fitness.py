"""One figure for a whole run, so that runs can be ranked: a weighted sum of scores between 0 and 1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blis_sim.options.addition import added_up
from replay.figures.distribution import Distribution, distribution
from replay.running.record import NEVER, Record
from traces.goodput import rate

_REFERENCE_RPS = 100.0
_REFERENCE_TOKENS_PER_S = 10_000.0
_FIGURES: Mapping[str, Callable[[Distribution], float]] = {
    "mean": lambda latencies: latencies.mean,
    "p50": lambda latencies: latencies.percentile(50),
    "p99": lambda latencies: latencies.percentile(99),
}


@dataclass(frozen=True, slots=True)
class Fitness:
    """The weighted sum, and the scores it is made of, by metric."""

    score: float
    components: dict[str, float]


def fitness(record: Record, weights: Mapping[str, float], output_tokens: int, duration_s: float) -> Fitness:
    """Rates score x / (x + 100 requests/s or 10,000 tokens/s), latencies 1 / (1 + milliseconds), 0 if there is none."""
    num_completed = int(record.is_completed.sum())
    scores = {
        "throughput": _of_rate(rate(num_completed, duration_s), _REFERENCE_RPS),
        "tokens_per_sec": _of_rate(rate(output_tokens if num_completed else 0, duration_s), _REFERENCE_TOKENS_PER_S),
    }
    for name, column_us in (("ttft", record.ttft_us), ("e2e", record.e2e_us)):
        latencies = distribution(column_us[column_us != NEVER])
        for figure, of in _FIGURES.items():
            scores[f"{figure}_{name}"] = 1 / (1 + of(latencies) / 1000) if len(latencies) else 0.0
    components = {metric: scores[metric] for metric in weights}
    return Fitness(added_up(weight * components[metric] for metric, weight in weights.items()), components)


def _of_rate(per_s: float, reference: float) -> float:
    return per_s / (per_s + reference)
