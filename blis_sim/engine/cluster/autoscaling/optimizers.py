"""Which instances to add or remove for a need. A new optimizer is one function and one row of `OPTIMIZERS`."""

import math
from collections.abc import Callable
from typing import TypeAlias

from blis_sim.engine.cluster.autoscaling.analyzers import Thresholds
from blis_sim.engine.cluster.autoscaling.figures import Change, Figures, Need

Optimizer: TypeAlias = Callable[[Figures, Need, Thresholds], Change | None]


def unlimited(figures: Figures, need: Need, thresholds: Thresholds) -> Change | None:
    """As if there was hardware without end: more of the cheapest variant, fewer of the most expensive one.

    At least one instance stays.
    """
    if need.missing_tokens > 0:
        if not figures.variants:
            return None
        cheapest = min(figures.variants, key=lambda variant: (variant.cost_per_hour, variant.name))
        return Change(cheapest.name, math.ceil(need.missing_tokens / (cheapest.capacity_tokens * thresholds.kv_usage)))
    present = [variant for variant in figures.variants if figures.num_replicas(variant.name)]
    if need.spare_tokens <= 0 or not present:
        return None
    dearest = min(present, key=lambda variant: (-variant.cost_per_hour, variant.name))
    wanted = math.floor(need.spare_tokens / (dearest.capacity_tokens * thresholds.kv_usage))
    most = min(figures.num_replicas(dearest.name), len(figures.replicas) - 1)
    return Change(dearest.name, -min(max(1, wanted), most)) if most else None


OPTIMIZERS: dict[str, Optimizer] = {
    "unlimited": unlimited,
}
"""Name to optimizer."""
