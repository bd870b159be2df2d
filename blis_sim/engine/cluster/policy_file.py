"""The file of `--policy-config`: admission, routing, priorities, tenant budgets, instances, nodes and the autoscaler.

All keys but `instances` are those of BLIS's policy bundle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

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
from blis_sim.engine.cluster.horizontal import HorizontalSettings
from blis_sim.engine.cluster.routing import ROUTERS
from blis_sim.engine.cluster.settings import LONGEST_DELAY_S
from blis_sim.engine.cluster.weights import Weights, checked_weights
from blis_sim.engine.errors import EngineError
from blis_sim.engine.file_parts import given, naming_file, problem_in, read_part
from blis_sim.engine.latency.catalogue import read_mapping
from blis_sim.engine.scheduler.policies import ORDERS, PRIORITIES, VICTIMS
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import SLO_CLASS_PRIORITIES, SloPriorities
from blis_sim.options.file_fields import Amount, AtLeastOne, Bounds, Count, Positive, Share

HIGHEST_PRIORITY = 100
"""The largest absolute value of an SLO priority."""


MAX_NODES = 100_000
"""The most nodes of one pool."""


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
    autoscaler: AutoscalerSettings | HorizontalSettings | None = None

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


Priority: TypeAlias = Annotated[int, Bounds(at_least=-HIGHEST_PRIORITY, at_most=HIGHEST_PRIORITY)]
Nodes: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=MAX_NODES)]
Seconds: TypeAlias = Annotated[float, Bounds(at_least=0, at_most=LONGEST_DELAY_S)]


class AdmissionKeys(TypedDict, total=False):
    """Which requests are admitted."""

    policy: Annotated[str, Bounds(choices=ADMISSIONS)]
    token_bucket_capacity: Positive
    token_bucket_refill_rate: Positive
    tier_shed_threshold: Count
    tier_shed_min_priority: Priority
    gaie_qd_threshold: Positive
    gaie_kv_threshold: Share
    slo_targets: Mapping[str, Annotated[float, Bounds(at_least=1)]]
    slo_priorities: Mapping[str, Priority]


class ScorerKeys(TypedDict, total=False):
    """A scorer of the weighted router."""

    name: str
    weight: Positive


class RoutingKeys(TypedDict, total=False):
    """Which instance a request goes to."""

    policy: Annotated[str, Bounds(choices=ROUTERS)]
    scorers: list[ScorerKeys]


class PriorityKeys(TypedDict, total=False):
    """How important a request is."""

    policy: Annotated[str, Bounds(choices=PRIORITIES)]


class PreemptionKeys(TypedDict, total=False):
    """Which running request gives way."""

    policy: Annotated[str, Bounds(choices=VICTIMS)]


class DelayKeys(TypedDict, total=False):
    """Normally distributed seconds."""

    mean: Seconds
    stddev: Seconds


class LifecycleKeys(TypedDict, total=False):
    """How instances start."""

    loading_delay: DelayKeys
    warm_start_initial_instances: bool


class NodePoolKeys(TypedDict, total=False):
    """Nodes of one kind."""

    name: str
    gpu_type: str
    gpus_per_node: AtLeastOne
    gpu_memory_gib: Amount
    initial_nodes: Nodes
    min_nodes: Nodes
    max_nodes: Nodes
    provisioning_delay: DelayKeys
    cost_per_hour: Amount


class ThresholdKeys(TypedDict, total=False):
    """When the autoscaler acts."""

    kv_cache_threshold: Share
    scale_up_threshold: Share
    scale_down_boundary: Share
    avg_input_tokens: AtLeastOne


class _AutoscalerParts(TypedDict, total=False):
    interval_us: Amount
    hpa_scrape_delay: DelayKeys
    scale_up_stabilization_window_us: Amount
    scale_down_stabilization_window_us: Amount


class AutoscalerKeys(_AutoscalerParts, total=False):
    """The autoscaler as BLIS has it: the thresholds below `analyzer`."""

    analyzer: ThresholdKeys
    engine: Annotated[str, Bounds(choices=OPTIMIZERS)]


class NamedAutoscalerKeys(_AutoscalerParts, ThresholdKeys, total=False):
    """The autoscaler with the name of an analyzer, and the thresholds beside it."""

    analyzer: Annotated[str, Bounds(choices=ANALYZERS)]
    engine: Annotated[str, Bounds(choices=OPTIMIZERS)]


class PolicyKeys(TypedDict, total=False):
    """The keys of the file. Entries of `instances` have `count` and settings by name."""

    admission: AdmissionKeys
    routing: RoutingKeys
    priority: PriorityKeys
    scheduler: Annotated[str, Bounds(choices=ORDERS)]
    preemption: PreemptionKeys
    tenant_budgets: Mapping[str, Annotated[float, Bounds(at_least=0, at_most=1)]]
    instances: list[Mapping[str, Any]]
    autoscaler: Mapping[str, Any]
    node_pools: list[NodePoolKeys]
    instance_lifecycle: LifecycleKeys


class GroupKeys(TypedDict, total=False):
    """The keys of an entry of `instances` that are no settings."""

    count: AtLeastOne


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read a file. Raises EngineError that names the file and the key for an unknown key or an invalid value."""
    path = Path(path)
    top: PolicyKeys = read_part(path, PolicyKeys, read_mapping(path))
    admission, routing = top.get("admission", {}), top.get("routing", {})
    targets, priorities = admission.get("slo_targets", {}), admission.get("slo_priorities", {})
    for name in targets:
        if name != name.strip() or not name or any(each in name for each in ",="):
            problem = f"the name of a class must have no spaces around it, no comma and no =, got {name!r}"
            raise problem_in(path, "admission.slo_targets", problem)
    return PolicyFile(
        **given(
            admission,
            admission_policy="policy",
            token_bucket_capacity="token_bucket_capacity",
            token_bucket_refill_rate="token_bucket_refill_rate",
            tier_shed_threshold="tier_shed_threshold",
            tier_shed_min_priority="tier_shed_min_priority",
            gaie_queue_depth="gaie_qd_threshold",
            gaie_kv_usage="gaie_kv_threshold",
        ),
        slo_targets_us={name: round(target) for name, target in targets.items()},
        slo_priorities=SloPriorities({**SLO_CLASS_PRIORITIES, **priorities}) if priorities else None,
        routing_policy=routing.get("policy"),
        scorers=_read_scorers(path, routing.get("scorers", [])),
        priority_policy=top.get("priority", {}).get("policy"),
        scheduler=top.get("scheduler"),
        preemption_policy=top.get("preemption", {}).get("policy"),
        tenant_budgets=top.get("tenant_budgets", {}),
        instances=tuple(_instance_group(path, number, each) for number, each in enumerate(top.get("instances", []))),
        scaling=_scaling_policy(path, top),
    )


def with_interval(policy: ScalingPolicy, interval_us: float) -> ScalingPolicy:
    """Return `policy` with an autoscaler that decides every `interval_us`, rounded; unchanged for 0."""
    if not interval_us:
        return policy
    autoscaler = policy.autoscaler or AutoscalerSettings()
    return replace(policy, autoscaler=replace(autoscaler, interval_us=max(1, round(interval_us))))


def _read_scorers(path: Path, scorers: Sequence[ScorerKeys]) -> Weights:
    for number, each in enumerate(scorers):
        if "weight" not in each:
            raise problem_in(path, f"routing.scorers[{number}]", "weight must be given a value")
    pairs = [(each.get("name", ""), each["weight"]) for each in scorers]
    return checked_weights(pairs, f"{path}: routing.scorers")


def _instance_group(path: Path, number: int, entry: Mapping[str, Any]) -> InstanceGroup:
    count = {"count": entry["count"]} if "count" in entry else {}
    return InstanceGroup(
        count=read_part(path, GroupKeys, count, f"instances[{number}]").get("count", 1),
        settings={name: value for name, value in entry.items() if name != "count"},
    )


def _scaling_policy(path: Path, top: PolicyKeys) -> ScalingPolicy:
    """Return the scaling policy of a file. Raises EngineError that names the file and the key."""
    lifecycle = top.get("instance_lifecycle", {})
    try:
        return ScalingPolicy(
            node_pools=tuple(map(_node_pool, top.get("node_pools", []))),
            loading=Delay(**lifecycle.get("loading_delay", {})),
            starts_warm=lifecycle.get("warm_start_initial_instances", False),
            autoscaler=_read_autoscaler(path, top.get("autoscaler", {})),
        )
    except EngineError as error:
        raise naming_file(path, error) from None


def _node_pool(keys: NodePoolKeys) -> NodePool:
    own: dict[str, Any] = {"name": "", "gpu_type": "", "gpus_per_node": 1, "initial_nodes": 0, **keys}
    return NodePool(provisioning=Delay(**own.pop("provisioning_delay", {})), **own)


def _read_autoscaler(path: Path, content: Mapping[str, Any]) -> AutoscalerSettings | None:
    """Read the autoscaler. Its thresholds stand below `analyzer`, as in BLIS, or beside the name of an analyzer."""
    if not content:
        return None
    is_nested = isinstance(content.get("analyzer"), Mapping)
    keys = read_part(path, AutoscalerKeys if is_nested else NamedAutoscalerKeys, content, "autoscaler")
    return AutoscalerSettings(
        interval_us=round(keys.get("interval_us", 0)),
        scrape_delay=Delay(**keys.get("hpa_scrape_delay", {})),
        windows=StabilizationWindows(
            scale_up_us=round(keys.get("scale_up_stabilization_window_us", 0)),
            scale_down_us=round(keys.get("scale_down_stabilization_window_us", 0)),
        ),
        thresholds=_read_thresholds(path, keys["analyzer"] if is_nested else keys, is_nested),
        **({} if is_nested else given(keys, analyzer="analyzer")),
        **given(keys, optimizer="engine"),
    )


def _read_thresholds(path: Path, keys: ThresholdKeys, is_nested: bool) -> Thresholds:
    own = given(
        keys,
        kv_usage="kv_cache_threshold",
        scale_up="scale_up_threshold",
        scale_down="scale_down_boundary",
        tokens_per_request="avg_input_tokens",
    )
    default = Thresholds()
    up, down = own.get("scale_up", default.scale_up), own.get("scale_down", default.scale_down)
    if down >= up:
        within = "autoscaler.analyzer" if is_nested else "autoscaler"
        raise problem_in(path, within, f"scale_down_boundary must be below scale_up_threshold ({up:g}), got {down:g}")
    return Thresholds(**own)
