"""Scorers of the weighted router by name. A new one is one file and one row here."""

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from engine.cluster.scorers.load import (
    active_requests,
    effective_load,
    load_aware,
    load_balance,
    queue_depth,
    running_requests,
    vllm_dp,
)
from engine.cluster.scorers.lora_affinity import lora_affinity
from engine.cluster.scorers.memory import kv_utilization
from engine.cluster.scorers.no_hit_lru import no_hit_lru
from engine.cluster.scorers.precise_prefix_cache import precise_prefix_cache
from engine.cluster.scorers.prefix_affinity import prefix_affinity
from engine.cluster.scorers.scorer import Scorer, ScorerSettings
from engine.errors import EngineError

Weights: TypeAlias = tuple[tuple[str, float], ...]
"""Scorers by name with their weights, in the order in which they are added up."""

SCORERS: dict[str, Callable[[ScorerSettings], Scorer]] = {
    "precise-prefix-cache": lambda _: Scorer(precise_prefix_cache, reads_in_flight=False, reads_caches=True),
    "prefix-affinity": prefix_affinity,
    "no-hit-lru": lambda _: no_hit_lru(),
    "queue-depth": lambda _: Scorer(queue_depth, reads_in_flight=False),
    "effective-load": lambda _: Scorer(effective_load),
    "kv-utilization": lambda _: Scorer(kv_utilization, reads_in_flight=False),
    "load-balance": lambda _: Scorer(load_balance),
    "active-requests": lambda _: Scorer(active_requests),
    "running-requests": lambda _: Scorer(running_requests, reads_in_flight=False),
    "load-aware": lambda _: Scorer(load_aware, reads_in_flight=False),
    "vllm-dp": lambda _: Scorer(vllm_dp, reads_in_flight=False),
    "lora-affinity": lambda _: Scorer(lora_affinity, reads_in_flight=False, reads_adapters=True),
}

DEFAULT_WEIGHTS: Weights = (("precise-prefix-cache", 2.0), ("queue-depth", 1.0), ("kv-utilization", 1.0))


HIGHEST_WEIGHT = 1e9
"""Sums of weights stay numbers."""


def parse_weights(text: str, label: str) -> Weights:
    """Weights of `name:weight[,name:weight]`. Raises EngineError that begins with `label`."""
    pairs = []
    for pair in text.split(","):
        name, _, number = (part.strip() for part in pair.partition(":"))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or math.isnan(weight):
            raise EngineError(f"{label} must be name:weight[,name:weight], got {pair!r}")
        pairs.append((name, weight))
    return checked_weights(pairs, label)


def checked_weights(pairs: Iterable[tuple[str, float]], label: str) -> Weights:
    """The weights, if all is well with them. Raises EngineError that begins with `label`."""
    weights: dict[str, float] = {}
    for name, weight in pairs:
        if name not in SCORERS:
            raise EngineError(f"{label} knows the scorers {', '.join(SCORERS)}, got {name!r}")
        if name in weights:
            raise EngineError(f"{label} names {name} twice")
        if not 0 < weight <= HIGHEST_WEIGHT:
            raise EngineError(f"{label} must give {name} a weight above 0 up to {HIGHEST_WEIGHT:g}, got {weight:g}")
        weights[name] = weight
    return tuple(weights.items())
