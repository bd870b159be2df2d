"""How much capacity is missing or could be spared. A new analyzer is one function and one row of `ANALYZERS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.cluster.autoscaling.figures import Figures, Need
from blis_sim.engine.errors import EngineError
from blis_sim.options.addition import added_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How full KV caches are meant to be. Raises EngineError when instances would come and go for ever."""

    kv_usage: float = 0.8
    """The share of a KV cache that counts as capacity."""
    scale_up: float = 0.8
    """The share of capacity from which on more is wanted."""
    scale_down: float = 0.4
    """The share of capacity under which some can be spared."""
    tokens_per_request: int = 512
    """What each waiting request is expected to need."""

    def __post_init__(self) -> None:
        for name in ("kv_usage", "scale_up", "scale_down"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise EngineError(f"{name} must be above 0 and at most 1, got {value}")
        if self.scale_down >= self.scale_up:
            raise EngineError(f"scale_down must be below scale_up ({self.scale_up}), got {self.scale_down}")
        if self.tokens_per_request < 1:
            raise EngineError(f"tokens_per_request must be at least 1, got {self.tokens_per_request}")


Analyzer: TypeAlias = Callable[[Figures, Thresholds], Need]


def kv_tokens(figures: Figures, thresholds: Thresholds) -> Need:
    """By the tokens in KV caches, and those that waiting requests will need.

    What can be spared must leave enough when the largest instance goes. The formulas are BLIS's.
    """
    supplies = [replica.capacity_tokens * thresholds.kv_usage for replica in figures.replicas]
    supply = added_up(supplies)
    demand = added_up(
        replica.tokens_in_use + replica.num_waiting * thresholds.tokens_per_request for replica in figures.replicas
    )
    pending = sum(variant.num_pending * variant.capacity_tokens for variant in figures.variants) * thresholds.kv_usage
    missing = demand / thresholds.scale_up - supply - pending
    if missing > 0:
        return Need(missing_tokens=missing)
    enough = demand / thresholds.scale_down
    if len(supplies) > 1 and supply > enough and supply - max(supplies) > enough:
        return Need(spare_tokens=supply - enough)
    return Need()


ANALYZERS: dict[str, Analyzer] = {
    "kv-tokens": kv_tokens,
}
"""Name to analyzer."""
