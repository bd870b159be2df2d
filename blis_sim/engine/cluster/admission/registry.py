"""Admission policies by name. A new one is one file and one row here."""

from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.cluster.admission.by_request import Stateless, always_admit, reject_all
from blis_sim.engine.cluster.admission.policy import AdmissionPolicy
from blis_sim.engine.cluster.admission.shedding import GaieLegacy, TierShed
from blis_sim.engine.cluster.admission.token_bucket import TokenBucket
from blis_sim.engine.errors import EngineError
from blis_sim.engine.slo_classes import DEFAULT_SLO_PRIORITIES, SloPriorities


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """What admission policies are made from. Raises EngineError for values out of bounds."""

    token_bucket_capacity: float = 10_000.0
    """Prompt tokens."""
    token_bucket_refill_rate: float = 1_000.0
    """Prompt tokens per second."""
    tier_shed_threshold: int = 0
    tier_shed_min_priority: int = 3
    priorities: SloPriorities = DEFAULT_SLO_PRIORITIES

    def __post_init__(self) -> None:
        for name in ("token_bucket_capacity", "token_bucket_refill_rate"):
            if (value := getattr(self, name)) <= 0:
                raise EngineError(f"{name} must be above 0, got {value:g}")
        if self.tier_shed_threshold < 0:
            raise EngineError(f"tier_shed_threshold must be at least 0, got {self.tier_shed_threshold}")


ADMISSIONS: dict[str, Callable[[AdmissionSettings], AdmissionPolicy]] = {
    "always-admit": lambda _: Stateless(always_admit),
    "token-bucket": lambda settings: TokenBucket(settings.token_bucket_capacity, settings.token_bucket_refill_rate),
    "reject-all": lambda _: Stateless(reject_all),
    "tier-shed": lambda settings: TierShed(
        settings.tier_shed_threshold, settings.tier_shed_min_priority, settings.priorities
    ),
    "gaie-legacy": lambda settings: GaieLegacy(settings.priorities),
}
