"""Admission policies: which requests a cluster takes, and their names. A new one is a class and a row here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from blis_sim.engine.cluster.event_queue import UnfinishedList
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES, SloPriorities
from blis_sim.options.addition import sequential_sum
from blis_sim.options.registry import Registry


class AdmissionPolicy(Protocol):
    """Decides which requests are admitted. A policy with state is an object of its own for each cluster."""

    @property
    def reads_snapshots(self) -> bool:
        """Whether decisions depend on snapshots of instances; otherwise snapshots are not refreshed."""
        ...

    def admits(self, request: Request, state: RoutingState) -> bool:
        """Whether `request` may come in at `state.now`. The cluster calls it once for each request."""
        ...

    @property
    def routed(self) -> Callable[[Sequence], None] | None:
        """Called with each admitted request when it comes to an instance; its `outcome` is set when it ends.

        None for a policy that needs no such calls.
        """
        ...


@dataclass(frozen=True, slots=True)
class FunctionPolicy:
    """A policy that is a function."""

    admits: Callable[[Request, RoutingState], bool]
    reads_snapshots: bool = False
    routed: None = None


def always_admit(_request: Request, _state: RoutingState) -> bool:
    """Admit every request."""
    return True


def reject_all(_request: Request, _state: RoutingState) -> bool:
    """Admit no request, to test clients."""
    return False


class TokenBucket:
    """A bucket that begins full and fills up at a steady rate; a request takes as many tokens as its prompt has."""

    reads_snapshots = False
    routed = None

    def __init__(self, capacity_tokens: float, refill_tokens_per_s: float) -> None:
        self._capacity = capacity_tokens
        self._rate = refill_tokens_per_s
        self._tokens = capacity_tokens
        self._filled_at: Micros = 0

    def admits(self, request: Request, state: RoutingState) -> bool:
        elapsed = state.now - self._filled_at
        if elapsed > 0:
            self._tokens = min(self._capacity, self._tokens + elapsed * self._rate / 1e6)
            self._filled_at = state.now
        if self._tokens < request.input_tokens:
            return False
        self._tokens -= request.input_tokens
        return True


LONG_QUEUE = 5
FULL_CACHE_FRACTION = 0.8
"""Least fraction of a KV cache in use at which an instance counts as full."""


@dataclass(frozen=True, slots=True)
class TierShed:
    """Rejects requests below importance `min_priority` while any instance has more than `threshold` effective load."""

    threshold: int
    min_priority: int
    priorities: SloPriorities
    reads_snapshots: bool = True
    routed: None = None

    def admits(self, request: Request, state: RoutingState) -> bool:
        if max((each.load for each in state.candidates), default=0) <= self.threshold:
            return True
        return self.priorities.importance(request.slo_class) >= self.min_priority


@dataclass(frozen=True, slots=True)
class GaieLegacy:
    """Rejects sheddable requests, and no others, while the instances are saturated on average."""

    priorities: SloPriorities
    long_queue: float = LONG_QUEUE
    full_cache_fraction: float = FULL_CACHE_FRACTION
    reads_snapshots: bool = True
    routed: None = None

    def admits(self, request: Request, state: RoutingState) -> bool:
        if not self.priorities.is_sheddable(request.slo_class):
            return True
        return saturation(state, self.long_queue, self.full_cache_fraction) < 1


def saturation(
    state: RoutingState, long_queue: float = LONG_QUEUE, full_cache_fraction: float = FULL_CACHE_FRACTION
) -> float:
    """Return the mean load of the instances as a share of their limits: waiting requests or KV cache, whichever is
    more.

    1 is full, which is also the value without instances.
    """
    if not state.candidates:
        return 1.0
    used = [
        max(each.num_waiting / long_queue, each.kv_usage_fraction / full_cache_fraction) for each in state.candidates
    ]
    return sequential_sum(used) / len(used)


@dataclass(frozen=True, slots=True)
class TenantBudgets:
    """Rejects sheddable requests of a tenant that has more requests in flight than its budget.

    `budgets` are shares of `num_seats`, those of all instances together; tenants without one have no limit. The inner
    policy decides about all other requests.
    """

    inner: AdmissionPolicy
    budgets: Mapping[str, float]
    num_seats: int
    priorities: SloPriorities
    reads_snapshots: bool = True
    in_flight: dict[str, UnfinishedList[Sequence]] = field(default_factory=dict)
    """Requests routed for each tenant with a budget; a count takes out the requests that have ended."""

    def admits(self, request: Request, state: RoutingState) -> bool:
        if not self.inner.admits(request, state):
            return False
        budget = self.budgets.get(request.tenant)
        if budget is None or not self.priorities.is_sheddable(request.slo_class):
            return True
        return self._num_in_flight(request.tenant) <= budget * self.num_seats

    def routed(self, sequence: Sequence) -> None:
        """Count a request as its tenant's, until it ends."""
        tenant = sequence.request.tenant
        if tenant in self.budgets:
            if tenant not in self.in_flight:
                self.in_flight[tenant] = UnfinishedList(_has_ended)
            self.in_flight[tenant].append(sequence)
        if self.inner.routed is not None:
            self.inner.routed(sequence)

    def _num_in_flight(self, tenant: str) -> int:
        """Cost: O(requests of the tenant that have not been found to have ended)."""
        in_flight = self.in_flight.get(tenant)
        if in_flight is None:
            return 0
        in_flight.prune()
        return len(in_flight.entries)


def _has_ended(sequence: Sequence) -> bool:
    return sequence.outcome is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Settings of admission policies. Raises EngineError for values out of bounds."""

    token_bucket_capacity: float = 10_000.0
    """Prompt tokens."""
    token_bucket_refill_rate: float = 1_000.0
    """Prompt tokens per second."""
    tier_shed_threshold: int = 0
    tier_shed_min_priority: int = 3
    gaie_queue_depth: float = LONG_QUEUE
    gaie_kv_usage: float = FULL_CACHE_FRACTION
    priorities: SloPriorities = DEFAULT_SLO_PRIORITIES

    def __post_init__(self) -> None:
        for name in ("token_bucket_capacity", "token_bucket_refill_rate", "gaie_queue_depth", "gaie_kv_usage"):
            if (value := getattr(self, name)) <= 0:
                raise EngineError(f"{name} must be above 0, got {value:g}")
        if self.tier_shed_threshold < 0:
            raise EngineError(f"tier_shed_threshold must be at least 0, got {self.tier_shed_threshold}")


ADMISSIONS = Registry[Callable[[AdmissionSettings], AdmissionPolicy]]("blis.admission_policies", "admits") | {
    "always-admit": lambda _: FunctionPolicy(always_admit),
    "token-bucket": lambda settings: TokenBucket(settings.token_bucket_capacity, settings.token_bucket_refill_rate),
    "reject-all": lambda _: FunctionPolicy(reject_all),
    "tier-shed": lambda settings: TierShed(
        settings.tier_shed_threshold, settings.tier_shed_min_priority, settings.priorities
    ),
    "gaie-legacy": lambda settings: GaieLegacy(settings.priorities, settings.gaie_queue_depth, settings.gaie_kv_usage),
}
