"""Decisions of an autoscaler: an analyzer finds the need, an optimizer picks a change, stabilization windows delay it.

A new analyzer is one function and one row of `ANALYZERS`; a new optimizer, one function and one row of `OPTIMIZERS`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from blis_sim.engine.cluster.settings import LONGEST_DELAY_S
from blis_sim.engine.draws import standard_normal
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options.addition import sequential_sum


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    """One instance that serves requests. Tokens are those of its KV cache."""

    instance: int
    variant: str
    """The kind of hardware: instances of one variant are alike."""
    capacity_tokens: int
    tokens_in_use: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class VariantMetrics:
    """All instances that run on one kind of hardware."""

    name: str
    capacity_tokens: int
    """Tokens in the KV cache of one instance."""
    cost_per_hour: float
    num_pending: int = 0
    """Instances that are loading."""


@dataclass(frozen=True, slots=True)
class AutoscalerMetrics:
    """All figures collected at one tick."""

    replicas: Sequence[ReplicaMetrics]
    variants: Sequence[VariantMetrics]

    def num_replicas(self, variant: str) -> int:
        """Instances of a variant that serve requests."""
        return sum(replica.variant == variant for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class CapacityNeed:
    """Tokens of usable capacity that are missing, or that could be spared. At most one of the two is set."""

    missing_tokens: float = 0.0
    spare_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Instances to add to one variant; a negative number removes instances."""

    variant: str
    num_instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Normally distributed seconds, never below 0. Raises EngineError for figures below 0 or above a day."""

    mean: float = 0.0
    stddev: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "stddev"):
            if not 0 <= (value := getattr(self, name)) <= LONGEST_DELAY_S:
                raise EngineError(f"the {name} of a delay must be from 0 to {LONGEST_DELAY_S:g} seconds, got {value}")

    def draw(self, number: int) -> Micros:
        """Return the delay of draw `number`."""
        seconds = self.mean + self.stddev * standard_normal(number) if self.stddev else self.mean
        return round(max(0.0, seconds) * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Target utilization of KV caches. Raises EngineError for thresholds that would never settle."""

    kv_usage: float = 0.8
    """Share of a KV cache that counts as capacity."""
    scale_up: float = 0.8
    """Share of capacity in use above which capacity is missing."""
    scale_down: float = 0.4
    """Share of capacity in use below which capacity can be spared."""
    tokens_per_request: int = 512
    """Tokens that each waiting request is expected to need."""

    def __post_init__(self) -> None:
        for name in ("kv_usage", "scale_up", "scale_down"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise EngineError(f"{name} must be above 0 and at most 1, got {value}")
        if self.scale_down >= self.scale_up:
            raise EngineError(f"scale_down must be below scale_up ({self.scale_up}), got {self.scale_down}")
        if self.tokens_per_request < 1:
            raise EngineError(f"tokens_per_request must be at least 1, got {self.tokens_per_request}")


Analyzer: TypeAlias = Callable[[AutoscalerMetrics, Thresholds], CapacityNeed]


def kv_tokens(metrics: AutoscalerMetrics, thresholds: Thresholds) -> CapacityNeed:
    """Compare usable KV cache capacity with the tokens in caches and the tokens that waiting requests will need.

    Capacity is spared only if enough remains after the largest instance leaves. The formulas are BLIS's.
    """
    supplies = [replica.capacity_tokens * thresholds.kv_usage for replica in metrics.replicas]
    supply = sequential_sum(supplies)
    demand = sequential_sum(
        replica.tokens_in_use + replica.num_waiting * thresholds.tokens_per_request for replica in metrics.replicas
    )
    pending = sum(variant.num_pending * variant.capacity_tokens for variant in metrics.variants) * thresholds.kv_usage
    missing = demand / thresholds.scale_up - supply - pending
    if missing > 0:
        return CapacityNeed(missing_tokens=missing)
    enough = demand / thresholds.scale_down
    if len(supplies) > 1 and supply > enough and supply - max(supplies) > enough:
        return CapacityNeed(spare_tokens=supply - enough)
    return CapacityNeed()


ANALYZERS: dict[str, Analyzer] = {
    "kv-tokens": kv_tokens,
}
"""Name to analyzer."""


Optimizer: TypeAlias = Callable[[AutoscalerMetrics, CapacityNeed, Thresholds], ScalingDecision | None]


def unlimited(metrics: AutoscalerMetrics, need: CapacityNeed, thresholds: Thresholds) -> ScalingDecision | None:
    """Add instances of the cheapest variant, remove instances of the most expensive one; at least one stays.

    The number of free GPUs is ignored.
    """
    if need.missing_tokens > 0:
        if not metrics.variants:
            return None
        cheapest = min(metrics.variants, key=lambda variant: (variant.cost_per_hour, variant.name))
        return ScalingDecision(
            cheapest.name, math.ceil(need.missing_tokens / (cheapest.capacity_tokens * thresholds.kv_usage))
        )
    present = [variant for variant in metrics.variants if metrics.num_replicas(variant.name)]
    if need.spare_tokens <= 0 or not present:
        return None
    dearest = min(present, key=lambda variant: (-variant.cost_per_hour, variant.name))
    num_spare = math.floor(need.spare_tokens / (dearest.capacity_tokens * thresholds.kv_usage))
    most = min(metrics.num_replicas(dearest.name), len(metrics.replicas) - 1)
    return ScalingDecision(dearest.name, -min(max(1, num_spare), most)) if most else None


OPTIMIZERS: dict[str, Optimizer] = {
    "unlimited": unlimited,
}
"""Name to optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilizationWindows:
    """Stabilization windows: how long a decision must hold before it takes effect. Raises EngineError below 0."""

    scale_up_us: Micros = 0
    scale_down_us: Micros = 0

    def __post_init__(self) -> None:
        for name in ("scale_up_us", "scale_down_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"the stabilization window {name} must be at least 0, got {value}")


class Stabilizer:
    """Lets a change pass once its direction has held at every tick of its window; then the window starts again."""

    __slots__ = ("_direction", "_since", "_windows")

    def __init__(self, windows: StabilizationWindows) -> None:
        self._windows = windows
        self._direction = 0
        self._since: Micros = 0

    def takes_effect(self, decision: ScalingDecision | None, at: Micros) -> bool:
        """Whether the change of this tick takes effect."""
        direction = 0 if decision is None else (decision.num_instances > 0) - (decision.num_instances < 0)
        if direction != self._direction:
            self._direction, self._since = direction, at
        if not direction:
            return False
        window_us = self._windows.scale_up_us if direction > 0 else self._windows.scale_down_us
        if at - self._since < window_us:
            return False
        self._direction = 0
        return True


MIN_INTERVAL_US: Micros = 100
"""A decision takes some 20 us of processor time, so shorter intervals would take minutes for each simulated second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """The interval of an autoscaler and the parts of its pipeline. Raises EngineError for values out of bounds."""

    interval_us: Micros = 0
    """Time between decisions; 0 for an autoscaler that decides nothing."""
    scrape_delay: Delay = field(default_factory=Delay)
    """Time from collecting the figures to acting on them."""
    windows: StabilizationWindows = field(default_factory=StabilizationWindows)
    thresholds: Thresholds = field(default_factory=Thresholds)
    analyzer: str = "kv-tokens"
    optimizer: str = "unlimited"

    def __post_init__(self) -> None:
        if self.interval_us and self.interval_us < MIN_INTERVAL_US:
            raise EngineError(
                f"interval_us of the autoscaler must be at least {MIN_INTERVAL_US}, got {self.interval_us}"
            )
        for name, known in (("analyzer", ANALYZERS), ("optimizer", OPTIMIZERS)):
            if (value := getattr(self, name)) not in known:
                raise EngineError(f"{name} of the autoscaler must be one of {', '.join(known)}, got {value!r}")


class AutoscalerPipeline:
    """Analyzer, optimizer and stabilization windows in a row. Its only state is the direction of earlier ticks."""

    __slots__ = ("_settings", "_stabilizer")

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._settings = settings
        self._stabilizer = Stabilizer(settings.windows)

    def decide(self, metrics: AutoscalerMetrics, at: Micros) -> ScalingDecision | None:
        """Return the change to make at this tick; None for no change."""
        settings = self._settings
        need = ANALYZERS[settings.analyzer](metrics, settings.thresholds)
        decision = OPTIMIZERS[settings.optimizer](metrics, need, settings.thresholds)
        return decision if self._stabilizer.takes_effect(decision, at) else None
