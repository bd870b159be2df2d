"""What users say of the fitness of a run: which of its metrics count, and how much."""

import math

from blis_sim.options import OptionError

METRICS = (
    "throughput", "tokens_per_sec", "mean_ttft", "p50_ttft", "p99_ttft", "mean_e2e", "p50_e2e", "p99_e2e",
)  # fmt: skip


def parse_weights(text: str) -> dict[str, float]:
    """Weights by metric of `metric:weight[,metric:weight]`, metrics ascending; empty of no text. Raises OptionError."""
    weights: dict[str, float] = {}
    for pair in text.split(",") if text.strip() else []:
        metric, _, number = (part.strip() for part in pair.partition(":"))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or weight < 0:
            raise OptionError(f"--fitness-weights must be metric:weight[,metric:weight], weights from 0, got {pair!r}")
        if metric not in METRICS:
            raise OptionError(f"--fitness-weights knows {', '.join(METRICS)}, got {metric!r}")
        if metric in weights:
            raise OptionError(f"--fitness-weights names {metric} twice")
        weights[metric] = weight
    return dict(sorted(weights.items()))
