"""The file of `--policy-config`: admission, routing, priorities, tenant budgets, instances, nodes and the autoscaler.

All keys but `instances` are those of BLIS's policy bundle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from blis_sim.engine.cluster.admission import ADMISSIONS
from blis_sim.engine.cluster.autoscaler import (
    ANALYZERS,
    OPTIMIZERS,
    AutoscalerSettings,
    Delay,
    NodePool,
    StabilizationWindows,
    Thresholds,
)
from blis_sim.engine.cluster.routing import ROUTERS
from blis_sim.engine.cluster.settings import LONGEST_DELAY_S
from blis_sim.engine.cluster.weights import Weights, checked_weights
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import read_mapping
from blis_sim.engine.scheduler.policies import ORDERS, PRIORITIES, VICTIMS
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import SLO_CLASS_PRIORITIES, SloPriorities


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the file; its methods read values and check them. Raises EngineError that names the file and the
    key."""

    path: Path
    name: str
    content: Mapping[str, Any]

    def check_keys(self, *keys: str) -> None:
        for key in self.content:
            if key not in keys:
                raise self.error(f"unknown key {key!r}, known are {', '.join(keys)}")

    def section(self, key: str) -> "Section":
        value = self.content.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{key} must be a mapping of names to values, got {value!r}")
        return Section(self.path, self._label(key), value)

    def sections(self, key: str) -> "list[Section]":
        value = self.content.get(key)
        if value is None:
            return []
        if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
            raise self.error(f"{key} must be a list of mappings, got {value!r}")
        return [Section(self.path, f"{self._label(key)}[{number}]", each) for number, each in enumerate(value)]

    def choice(self, key: str, choices: Mapping[str, object]) -> str | None:
        value = self.content.get(key)
        if value == "":
            return None  # as a key without a value
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise self.error(f"{key} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def text(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} must be text, got {value!r}")
        return value

    def boolean(self, key: str) -> bool | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {value!r}")
        return value

    def integer(self, key: str, at_least: int, at_most: int | None) -> int | None:
        value = self.content.get(key)
        if value is None:
            return None
        bounds = f"of at least {at_least}" if at_most is None else f"between {at_least} and {at_most}"
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not is_whole or value < at_least or (at_most is not None and value > at_most):
            raise self.error(f"{key} must be a whole number {bounds}, got {value!r}")
        return int(value)

    def micros(self, key: str, at_least: int) -> int | None:
        """Return a number of microseconds, rounded to whole ones."""
        value = self.number(key, at_least=at_least)
        return None if value is None else round(value)

    def number(
        self, key: str, above: float | None = None, at_least: float | None = None, at_most: float | None = None
    ) -> float | None:
        value = self.content.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _fits_float(value):
            raise self.error(f"{key} must be a number, got {value!r}")
        if above is not None and value <= above:
            raise self.error(f"{key} must be above {above:g}, got {value}")
        if at_least is not None and value < at_least:
            raise self.error(f"{key} must be at least {at_least:g}, got {value}")
        if at_most is not None and value > at_most:
            raise self.error(f"{key} must be at most {at_most:g}, got {value}")
        return float(value)

    def _label(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def error(self, message: str) -> EngineError:
        return EngineError(f"{self.path}: {self.name + ': ' if self.name else ''}{message}")


def _fits_float(value: float) -> bool:
    """Whether a number is finite, as one with hundreds of digits is not when it is computed with."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


Number = TypeVar("Number", int, float)

HIGHEST_PRIORITY = 100
"""The largest absolute value of an SLO priority."""


MAX_NODES = 100_000
"""The most nodes of one pool."""


SCALING_KEYS = ("autoscaler", "node_pools", "instance_lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """`count` instances with `settings` of their own, by option name, in place of the flags."""

    count: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Node pools, the loading of instances and the autoscaler; by default there are none."""

    node_pools: tuple[NodePool, ...] = ()
    loading: Delay = field(default_factory=Delay)
    """Time from the decision to start an instance until it serves."""
    starts_warm: bool = False
    """Whether the initial instances serve from the beginning."""
    autoscaler: AutoscalerSettings | None = None

    @property
    def decides(self) -> bool:
        """Whether an autoscaler takes decisions."""
        return self.autoscaler is not None and self.autoscaler.interval_us > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """The policies of a file; None or empty for each that the file does not set."""

    admission_policy: str | None = None
    token_bucket_capacity: float | None = None
    token_bucket_refill_rate: float | None = None
    tier_shed_threshold: int | None = None
    tier_shed_min_priority: int | None = None
    gaie_queue_depth: float | None = None
    """Waiting requests at which an instance is saturated, for gaie-legacy."""
    gaie_kv_usage: float | None = None
    """Used fraction of the KV cache at which an instance is saturated, for gaie-legacy."""
    slo_targets_us: Mapping[str, Micros] = field(default_factory=dict)
    """SLO targets by class, for the gateway's order of deadlines."""
    slo_priorities: SloPriorities | None = None
    routing_policy: str | None = None
    scorers: Weights = ()
    priority_policy: str | None = None
    scheduler: str | None = None
    preemption_policy: str | None = None
    tenant_budgets: Mapping[str, float] = field(default_factory=dict)
    """Shares of all seats by tenant, above which sheddable requests of the tenant are rejected."""
    instances: tuple[InstanceGroup, ...] = ()
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    """Node pools, instance lifecycle and autoscaler."""


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read a file. Raises EngineError that names the file and the key for an unknown key or an invalid value."""
    path = Path(path)
    top = Section(path, "", read_mapping(path))
    top.check_keys(
        "admission", "routing", "priority", "scheduler", "preemption", "tenant_budgets", "instances", *SCALING_KEYS
    )
    admission, routing = top.section("admission"), top.section("routing")
    priority, preemption = top.section("priority"), top.section("preemption")
    admission.check_keys(
        "policy",
        "token_bucket_capacity",
        "token_bucket_refill_rate",
        "tier_shed_threshold",
        "tier_shed_min_priority",
        "gaie_qd_threshold",
        "gaie_kv_threshold",
        "slo_targets",
        "slo_priorities",
    )
    routing.check_keys("policy", "scorers")
    priority.check_keys("policy")
    preemption.check_keys("policy")
    return PolicyFile(
        admission_policy=admission.choice("policy", ADMISSIONS),
        token_bucket_capacity=admission.number("token_bucket_capacity", above=0),
        token_bucket_refill_rate=admission.number("token_bucket_refill_rate", above=0),
        tier_shed_threshold=admission.integer("tier_shed_threshold", 0, None),
        tier_shed_min_priority=admission.integer("tier_shed_min_priority", -HIGHEST_PRIORITY, HIGHEST_PRIORITY),
        gaie_queue_depth=admission.number("gaie_qd_threshold", above=0),
        gaie_kv_usage=admission.number("gaie_kv_threshold", above=0, at_most=1),
        slo_targets_us=_slo_targets(admission),
        slo_priorities=_slo_priorities(admission),
        routing_policy=routing.choice("policy", ROUTERS),
        scorers=_scorers(routing),
        priority_policy=priority.choice("policy", PRIORITIES),
        scheduler=top.choice("scheduler", ORDERS),
        preemption_policy=preemption.choice("policy", VICTIMS),
        tenant_budgets=_tenant_budgets(top),
        instances=tuple(_group(each) for each in top.sections("instances")),
        scaling=scaling_policy(top),
    )


def with_interval(policy: ScalingPolicy, interval_us: float) -> ScalingPolicy:
    """Return `policy` with an autoscaler that decides every `interval_us`, rounded; unchanged for 0."""
    if not interval_us:
        return policy
    autoscaler = policy.autoscaler or AutoscalerSettings()
    return replace(policy, autoscaler=replace(autoscaler, interval_us=max(1, round(interval_us))))


def _slo_priorities(admission: Section) -> SloPriorities | None:
    section = admission.section("slo_priorities")
    if not section.content:
        return None
    given = {
        name: _needed(section, name, section.integer(name, -HIGHEST_PRIORITY, HIGHEST_PRIORITY))
        for name in section.content
    }
    return SloPriorities({**SLO_CLASS_PRIORITIES, **given})


def _slo_targets(admission: Section) -> dict[str, Micros]:
    section = admission.section("slo_targets")
    for name in section.content:
        if name != name.strip() or not name or any(each in name for each in ",="):
            raise section.error(f"the name of a class must have no spaces around it, no comma and no =, got {name!r}")
    return {name: _needed(section, name, section.micros(name, 1)) for name in section.content}


def _scorers(routing: Section) -> Weights:
    pairs = []
    for each in routing.sections("scorers"):
        each.check_keys("name", "weight")
        weight = _needed(each, "weight", each.number("weight", above=0))
        pairs.append((str(each.content.get("name", "")), weight))
    return checked_weights(pairs, f"{routing.path}: routing.scorers")


def _tenant_budgets(top: Section) -> dict[str, float]:
    section = top.section("tenant_budgets")
    return {name: _needed(section, name, section.number(name, at_least=0, at_most=1)) for name in section.content}


def _needed(section: Section, name: str, value: Number | None) -> Number:
    """Return the value of a key that the file's author names. Raises EngineError without a value."""
    if value is None:
        raise section.error(f"{name} must be given a value")
    return value


def _group(each: Section) -> InstanceGroup:
    count = each.integer("count", 1, None)
    return InstanceGroup(
        count=1 if count is None else count,
        settings={name: value for name, value in each.content.items() if name != "count"},
    )


def scaling_policy(top: Section) -> ScalingPolicy:
    """Return the scaling policy of a file. Raises EngineError that names the file and the key."""
    try:
        return _scaling_policy(top)
    except EngineError as error:
        text = str(error)
        raise EngineError(text if text.startswith(f"{top.path}:") else f"{top.path}: {text}") from None


def _scaling_policy(top: Section) -> ScalingPolicy:
    lifecycle = top.section("instance_lifecycle")
    lifecycle.check_keys("loading_delay", "warm_start_initial_instances")
    return ScalingPolicy(
        node_pools=tuple(_node_pool(each) for each in top.sections("node_pools")),
        loading=_delay(lifecycle.section("loading_delay")),
        starts_warm=lifecycle.boolean("warm_start_initial_instances") or False,
        autoscaler=_autoscaler(top.section("autoscaler")),
    )


def _node_pool(section: Section) -> NodePool:
    section.check_keys(
        "name",
        "gpu_type",
        "gpus_per_node",
        "gpu_memory_gib",
        "initial_nodes",
        "min_nodes",
        "max_nodes",
        "provisioning_delay",
        "cost_per_hour",
    )
    return NodePool(
        name=section.text("name") or "",
        gpu_type=section.text("gpu_type") or "",
        gpus_per_node=section.integer("gpus_per_node", 1, None) or 1,
        initial_nodes=section.integer("initial_nodes", 0, MAX_NODES) or 0,
        min_nodes=section.integer("min_nodes", 0, MAX_NODES) or 0,
        max_nodes=section.integer("max_nodes", 0, MAX_NODES),
        provisioning=_delay(section.section("provisioning_delay")),
        gpu_memory_gib=section.number("gpu_memory_gib", at_least=0) or 0.0,
        cost_per_hour=section.number("cost_per_hour", at_least=0) or 0.0,
    )


def _delay(section: Section) -> Delay:
    section.check_keys("mean", "stddev")
    return Delay(mean=_seconds(section, "mean"), stddev=_seconds(section, "stddev"))


def _seconds(section: Section, key: str) -> float:
    return section.number(key, at_least=0, at_most=LONGEST_DELAY_S) or 0.0


_THRESHOLDS = ("kv_cache_threshold", "scale_up_threshold", "scale_down_boundary", "avg_input_tokens")


def _autoscaler(section: Section) -> AutoscalerSettings | None:
    """Read the autoscaler. Its thresholds stand below `analyzer`, as in BLIS, or beside the name of an analyzer."""
    if not section.content:
        return None
    has_analyzer_section = isinstance(section.content.get("analyzer"), Mapping)
    section.check_keys(
        "interval_us",
        "hpa_scrape_delay",
        "scale_up_stabilization_window_us",
        "scale_down_stabilization_window_us",
        "analyzer",
        "engine",
        *(() if has_analyzer_section else _THRESHOLDS),
    )
    first = next(iter(ANALYZERS))
    if has_analyzer_section:
        thresholds, analyzer = section.section("analyzer"), first
        thresholds.check_keys(*_THRESHOLDS)
    else:
        thresholds, analyzer = section, section.choice("analyzer", ANALYZERS) or first
    return AutoscalerSettings(
        interval_us=section.micros("interval_us", 0) or 0,
        scrape_delay=_delay(section.section("hpa_scrape_delay")),
        windows=StabilizationWindows(
            scale_up_us=section.micros("scale_up_stabilization_window_us", 0) or 0,
            scale_down_us=section.micros("scale_down_stabilization_window_us", 0) or 0,
        ),
        thresholds=_thresholds(thresholds),
        analyzer=analyzer,
        optimizer=section.choice("engine", OPTIMIZERS) or next(iter(OPTIMIZERS)),
    )


def _thresholds(section: Section) -> Thresholds:
    default = Thresholds()
    scale_up = section.number("scale_up_threshold", above=0, at_most=1) or default.scale_up
    scale_down = section.number("scale_down_boundary", above=0, at_most=1) or default.scale_down
    if scale_down >= scale_up:
        raise section.error(f"scale_down_boundary must be below scale_up_threshold ({scale_up:g}), got {scale_down:g}")
    return Thresholds(
        kv_usage=section.number("kv_cache_threshold", above=0, at_most=1) or default.kv_usage,
        scale_up=scale_up,
        scale_down=scale_down,
        tokens_per_request=section.integer("avg_input_tokens", 1, None) or default.tokens_per_request,
    )
