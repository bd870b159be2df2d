"""Routers by name. A new one is one file and one row here."""

from collections.abc import Callable
from dataclasses import dataclass, field

from blis_sim.engine.cluster.routing.by_load import always_busiest, least_loaded
from blis_sim.engine.cluster.routing.drawn import Random
from blis_sim.engine.cluster.routing.policy import Router
from blis_sim.engine.cluster.routing.round_robin import RoundRobin
from blis_sim.engine.cluster.routing.weighted import Weighted
from blis_sim.engine.cluster.scorers.registry import SCORERS
from blis_sim.engine.cluster.scorers.scorer import ScorerSettings
from blis_sim.engine.cluster.scorers.weights import DEFAULT_WEIGHTS, Weights
from blis_sim.engine.cluster.ties import Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """What routers are made from."""

    ties: Ties
    weights: Weights = DEFAULT_WEIGHTS
    """Scorers of the weighted router, in order."""
    scorers: ScorerSettings = field(default_factory=ScorerSettings)


def _weighted(settings: RouterSettings) -> Router:
    return Weighted([(SCORERS[name](settings.scorers), weight) for name, weight in settings.weights], settings.ties)


ROUTERS: dict[str, Callable[[RouterSettings], Router]] = {
    "round-robin": lambda _: RoundRobin(),
    "least-loaded": lambda settings: least_loaded(settings.ties),
    "always-busiest": lambda _: always_busiest(),
    "random": lambda settings: Random(settings.ties),
    "weighted": _weighted,
}
