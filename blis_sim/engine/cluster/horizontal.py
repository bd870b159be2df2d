"""How many instances Kubernetes asks for: the algorithms of a HorizontalPodAutoscaler and of a KEDA ScaledObject.

A replica is one instance. Names and order of the steps are those of Kubernetes
(pkg/controller/podautoscaler/horizontal.go and replica_calculator.go, autoscaling/v2).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from blis_sim.engine.cluster.autoscaler import AutoscalerMetrics, Delay, ReplicaMetrics, ScalingDecision
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options.addition import sequential_sum

TOLERANCE = 0.1
"""Share by which a metric may miss its target before the number changes, with the default of Kubernetes."""
SYNC_PERIOD_US: Micros = 15_000_000
"""Time between two decisions, with the default of Kubernetes."""
POLLING_INTERVAL_US: Micros = 30_000_000
"""Time between KEDA's looks at whether anything is active, with its default of `pollingInterval`."""
COOLDOWN_US: Micros = 300_000_000
"""Time without activity after which KEDA removes the last instance, with its default of `cooldownPeriod`."""
MOST_REPLICAS = 10_000

ReplicaFigure: TypeAlias = Callable[[ReplicaMetrics], float]

REPLICA_FIGURES: Mapping[str, ReplicaFigure] = {
    "num_requests_waiting": lambda replica: replica.num_waiting,
    "num_requests_running": lambda replica: replica.num_running,
    "kv_cache_usage_perc": lambda replica: replica.tokens_in_use / replica.capacity_tokens,
}
"""Gauges of vLLM's metrics page, without their prefix, and how each reads from an instance."""
QUEUE_FIGURE = "inference_extension_flow_control_queue_size"
"""The gauge of requests that wait at the gateway, as the endpoint picker of the inference extension names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTarget:
    """A metric with the value at which the number of instances stays.

    `figures` are names of `REPLICA_FIGURES` or `QUEUE_FIGURE`, which are added up. With `is_per_pod` the metric is read
    of each pod, and pods without one count as Kubernetes counts them; otherwise it is one figure of all. With
    `is_average` the target is that of one instance; otherwise the target is that of the whole figure.
    `takes_mean` makes one figure of all instances by their mean in place of their sum.
    """

    figures: tuple[str, ...]
    target: float
    is_per_pod: bool = True
    is_average: bool = True
    takes_mean: bool = False

    def __post_init__(self) -> None:
        if not self.target > 0:
            raise EngineError(f"the target of a metric must be above 0, got {self.target:g}")

    def value(self, metrics: AutoscalerMetrics) -> float:
        """The one figure of all instances and of the gateway."""
        total = 0.0
        for name in self.figures:
            if name == QUEUE_FIGURE:
                total += metrics.num_queued
                continue
            read = REPLICA_FIGURES[name]
            found = sequential_sum(read(replica) for replica in metrics.replicas)
            total += found / len(metrics.replicas) if self.takes_mean and metrics.replicas else found
        return total

    def wanted(self, metrics: AutoscalerMetrics, current: int, steady: "SteadyRange") -> int:
        """Return the number of instances for this metric alone."""
        num_ready, value = len(metrics.replicas), self.value(metrics)
        if not self.is_per_pod:
            divisor = self.target * (current if self.is_average else 1)
            ratio = value / divisor
            if steady.has(ratio):
                return current
            return _ceil(value / self.target) if self.is_average else _ceil(ratio * num_ready)
        if not num_ready:
            return current  # no pod has the metric
        ratio = value / num_ready / self.target
        num_missing = current - num_ready
        if num_missing <= 0:
            return current if steady.has(ratio) else _ceil(ratio * num_ready)
        # Pods that load have no metric: none of them asks for more, and all of them are busy before any is removed.
        missing = 0.0 if ratio > 1.0 else self.target
        cautious = (value + missing * num_missing) / current / self.target
        if steady.has(cautious) or (ratio < 1.0) != (cautious < 1.0):
            return current
        found = _ceil(cautious * current)
        return max(found, current) if cautious > 1.0 else min(found, current)


@dataclass(frozen=True, slots=True)
class SteadyRange:
    """Ratios of a metric to its target at which the number of instances stays: from 1 - `down` to 1 + `up`."""

    down: float
    up: float

    def has(self, ratio: float) -> bool:
        """Whether the number stays at this ratio."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStep:
    """The most that may change within a period: a number of instances, or a share of them in percent."""

    value: int
    is_percent: bool
    period_us: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """How fast the number of instances may change in one direction.

    `select` is Max for the step that changes most, Min for the one that changes least, Disabled for no change.
    """

    window_us: Micros
    steps: tuple[ScalingStep, ...]
    select: str = "Max"
    tolerance: float = TOLERANCE


_PERIOD_US: Micros = 15_000_000
DEFAULT_UP = ScalingRules(
    window_us=0,
    steps=(
        ScalingStep(value=100, is_percent=True, period_us=_PERIOD_US),
        ScalingStep(value=4, is_percent=False, period_us=_PERIOD_US),
    ),
)
"""Kubernetes' own rules for more instances: at once, the larger of four and twice as many, each 15 s."""
DEFAULT_DOWN = ScalingRules(
    window_us=300_000_000, steps=(ScalingStep(value=100, is_percent=True, period_us=_PERIOD_US),)
)
"""Kubernetes' own rules for fewer instances: what was enough for the last five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """When KEDA starts the first instance and stops the last one."""

    thresholds: tuple[float, ...]
    """The value above which a metric is active, for each metric of the autoscaler in its order."""
    goes_to_zero: bool = True
    """Whether all instances stop when no metric is active."""
    cooldown_us: Micros = COOLDOWN_US
    initial_cooldown_us: Micros = 0
    """Time from the beginning until all instances stop where none was ever active; `cooldown_us` has no effect then."""
    polling_us: Micros = POLLING_INTERVAL_US


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalSettings:
    """A HorizontalPodAutoscaler. With `activation` it is KEDA's, which also goes down to no instance at all.

    Raises EngineError for bounds that contradict each other.
    """

    name: str
    least: int
    most: int
    metrics: tuple[MetricTarget, ...]
    up: ScalingRules = DEFAULT_UP
    down: ScalingRules = DEFAULT_DOWN
    interval_us: Micros = SYNC_PERIOD_US
    activation: Activation | None = None
    scrape_delay: Delay = field(default_factory=Delay)
    keeps_number: bool = True
    """A killed instance is replaced at once, as a Deployment does."""

    def new_pipeline(self) -> "HorizontalPipeline":
        """The decisions from the beginning."""
        return HorizontalPipeline(self)

    @property
    def wakes(self) -> bool:
        """Whether an instance is started where there is none."""
        return self.activation is not None and self.activation.goes_to_zero

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= MOST_REPLICAS:
            raise EngineError(
                f"an autoscaler needs at most {MOST_REPLICAS} replicas and no fewer than its least, "
                f"got {self.least} to {self.most}"
            )
        if not self.metrics:
            raise EngineError("an autoscaler needs at least one metric")
        if not self.least and self.activation is None:
            raise EngineError("only an autoscaler of KEDA goes down to no replica at all")


@dataclass(slots=True)
class _Change:
    at: Micros
    num_instances: int


@dataclass(slots=True)
class HorizontalPipeline:
    """The decisions of one autoscaler, one after the other."""

    settings: HorizontalSettings
    _recommended: deque[tuple[Micros, int]] = field(default_factory=deque)
    """Recommendations of the longest window, the oldest first."""
    _changes: deque[_Change] = field(default_factory=deque)
    """Changes of the longest period of a step, the oldest first."""
    _active_at: Micros | None = None
    """The latest look of KEDA at which a metric was active."""
    _polled_at: Micros | None = None

    def decide(self, metrics: AutoscalerMetrics, at: Micros) -> ScalingDecision | None:
        """Return the change of the number of instances; None for no change."""
        current = len(metrics.replicas) + sum(variant.num_pending for variant in metrics.variants)
        change = self._wanted(metrics, current, at) - current
        if not change:
            return None
        self._changes.append(_Change(at, change))
        return ScalingDecision(metrics.variants[0].name, change)

    def _wanted(self, metrics: AutoscalerMetrics, current: int, at: Micros) -> int:
        settings, activation = self.settings, self.settings.activation
        least = max(settings.least, 1)
        if activation is not None:
            is_active = self._is_active(metrics, activation, at)
            if not current:
                return least if is_active else 0
            idle_since = self._active_at
            if idle_since is None:  # as KEDA, which has seen no activity since the ScaledObject came
                is_cool = at >= activation.initial_cooldown_us
            else:
                is_cool = at - idle_since >= activation.cooldown_us
            if activation.goes_to_zero and not is_active and is_cool:
                return 0
        if not least <= current <= settings.most:
            return min(max(current, least), settings.most)
        if not self._recommended:
            self._recommended.append((at, current))
        steady = SteadyRange(settings.down.tolerance, settings.up.tolerance)
        wanted = max(each.wanted(metrics, current, steady) for each in settings.metrics)
        wanted = self._limited(self._stabilized(wanted, current, at), current, at)
        return min(max(wanted, least), settings.most)

    def _is_active(self, metrics: AutoscalerMetrics, activation: Activation, at: Micros) -> bool:
        """Whether a metric was above its activation at KEDA's latest look."""
        if self._polled_at is None or at - self._polled_at >= activation.polling_us:
            self._polled_at = at
            pairs = zip(self.settings.metrics, activation.thresholds, strict=True)
            if any(each.value(metrics) > threshold for each, threshold in pairs):
                self._active_at = at
        return self._active_at == self._polled_at

    def _stabilized(self, wanted: int, current: int, at: Micros) -> int:
        """More is the least that was asked for within the window of more, and fewer the most within that of fewer."""
        up_us, down_us = self.settings.up.window_us, self.settings.down.window_us
        while self._recommended and self._recommended[0][0] <= at - max(up_us, down_us):
            self._recommended.popleft()
        least = min((number for since, number in self._recommended if since > at - up_us), default=wanted)
        most = max((number for since, number in self._recommended if since > at - down_us), default=wanted)
        self._recommended.append((at, wanted))
        return min(max(current, min(wanted, least)), max(wanted, most))

    def _limited(self, wanted: int, current: int, at: Micros) -> int:
        """Return the number of instances that the steps of the direction allow."""
        rules = self.settings.up if wanted > current else self.settings.down
        longest_us = max(step.period_us for each in (self.settings.up, self.settings.down) for step in each.steps)
        while self._changes and self._changes[0].at <= at - longest_us:
            self._changes.popleft()
        if wanted == current or rules.select == "Disabled":
            return current
        limits = [self._limit(step, current, at, is_up=wanted > current) for step in rules.steps]
        takes_most = (rules.select == "Max") == (wanted > current)
        limit = max(limits) if takes_most else min(limits)
        return min(wanted, max(limit, current)) if wanted > current else max(wanted, min(limit, current))

    def _limit(self, step: ScalingStep, current: int, at: Micros, *, is_up: bool) -> int:
        """The number that a step allows, counted from what there was at the beginning of its period."""
        changed = sum(each.num_instances for each in self._changes if each.at > at - step.period_us)
        first = current - changed
        if is_up:
            return _ceil(first * (1 + step.value / 100)) if step.is_percent else first + step.value
        return int(first * (1 - step.value / 100)) if step.is_percent else first - step.value


def _ceil(value: float) -> int:
    """The next whole number, at most the most that an autoscaler may have."""
    return MOST_REPLICAS if value >= MOST_REPLICAS else math.ceil(value)
