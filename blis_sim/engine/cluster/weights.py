"""Weights of scorers, as flags and policy files name them."""

import math
from collections.abc import Iterable
from typing import TypeAlias

from blis_sim.engine.errors import EngineError

Weights: TypeAlias = tuple[tuple[str, float], ...]
"""Names of scorers with their weights, in the order in which scores are added up."""

DEFAULT_WEIGHTS: Weights = (("precise-prefix-cache", 2.0), ("queue-depth", 1.0), ("kv-utilization", 1.0))

HIGHEST_WEIGHT = 1e9
"""The largest weight of a scorer, so that sums of weights stay finite."""


def parse_weights(text: str, label: str) -> Weights:
    """Parse `name:weight[,name:weight]`. Raises EngineError that begins with `label`."""
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
    """Return valid weights. Raises EngineError that begins with `label` for an unknown scorer or an invalid weight."""
    from blis_sim.engine.cluster.scorers import SCORERS  # imported here: most commands use no scorer

    weights: dict[str, float] = {}
    for name, weight in pairs:
        if name not in SCORERS:
            raise EngineError(f"{label} must name scorers of {', '.join(SCORERS)}, got {name!r}")
        if name in weights:
            raise EngineError(f"{label} names {name} twice")
        if not 0 < weight <= HIGHEST_WEIGHT:
            raise EngineError(f"{label} must give {name} a weight above 0 up to {HIGHEST_WEIGHT:g}, got {weight:g}")
        weights[name] = weight
    return tuple(weights.items())
