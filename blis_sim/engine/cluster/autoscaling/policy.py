"""What a policy file says about machines and about an autoscaler. The keys are BLIS's where it has them."""

from dataclasses import dataclass, field, replace

from blis_sim.engine.cluster.autoscaling.analyzers import ANALYZERS, Thresholds
from blis_sim.engine.cluster.autoscaling.delays import LONGEST_DELAY_S, Delay
from blis_sim.engine.cluster.autoscaling.nodes import NodePool
from blis_sim.engine.cluster.autoscaling.optimizers import OPTIMIZERS
from blis_sim.engine.cluster.autoscaling.pipeline import AutoscalerSettings
from blis_sim.engine.cluster.autoscaling.stabilizer import Windows
from blis_sim.engine.cluster.policy_section import Section
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

MOST_NODES = 100_000
"""Of one pool."""

SCALING_KEYS = ("autoscaler", "node_pools", "instance_lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Machines, how instances come to them, and who decides how many there are; nothing of it by default."""

    node_pools: tuple[NodePool, ...] = ()
    loading: Delay = field(default_factory=Delay)
    """From the decision to start an instance until it serves."""
    starts_warm: bool = False
    """Whether the first instances serve from the beginning."""
    autoscaler: AutoscalerSettings | None = None


def scaling_policy(top: Section) -> ScalingPolicy:
    """The policy in a file. Raises EngineError that names the file and the key."""
    try:
        return _scaling_policy(top)
    except EngineError as error:
        text = str(error)
        raise EngineError(text if text.startswith(f"{top.path}:") else f"{top.path}: {text}") from None


def _scaling_policy(top: Section) -> ScalingPolicy:
    lifecycle = top.section("instance_lifecycle")
    lifecycle.demand_known("loading_delay", "warm_start_initial_instances")
    return ScalingPolicy(
        node_pools=tuple(_node_pool(each) for each in top.sections("node_pools")),
        loading=_delay(lifecycle.section("loading_delay")),
        starts_warm=lifecycle.switch("warm_start_initial_instances") or False,
        autoscaler=_autoscaler(top.section("autoscaler")),
    )


def with_interval(policy: ScalingPolicy, interval_us: Micros) -> ScalingPolicy:
    """The policy with an autoscaler that looks so often; unchanged for 0."""
    if not interval_us:
        return policy
    given = policy.autoscaler or AutoscalerSettings(interval_us=interval_us)
    return replace(policy, autoscaler=replace(given, interval_us=interval_us))


def _node_pool(section: Section) -> NodePool:
    section.demand_known("name", "gpu_type", "gpus_per_node", "gpu_memory_gib", "initial_nodes", "cost_per_hour")
    return NodePool(
        name=section.text("name") or "",
        gpu_type=section.text("gpu_type") or "",
        gpus_per_node=section.whole("gpus_per_node", 1, None) or 1,
        initial_nodes=section.whole("initial_nodes", 0, MOST_NODES) or 0,
        gpu_memory_gib=section.number("gpu_memory_gib", above=0) or 0.0,
        cost_per_hour=section.number("cost_per_hour", above=0) or 0.0,
    )


def _delay(section: Section) -> Delay:
    section.demand_known("mean", "stddev")
    return Delay(mean=_seconds(section, "mean"), stddev=_seconds(section, "stddev"))


def _seconds(section: Section, key: str) -> float:
    return section.number(key, at_least=0, at_most=LONGEST_DELAY_S) or 0.0


def _autoscaler(section: Section) -> AutoscalerSettings | None:
    if not section.content:
        return None
    section.demand_known(
        "interval_us",
        "hpa_scrape_delay",
        "scale_up_stabilization_window_us",
        "scale_down_stabilization_window_us",
        "analyzer",
        "engine",
        "kv_cache_threshold",
        "scale_up_threshold",
        "scale_down_boundary",
        "avg_input_tokens",
    )
    return AutoscalerSettings(
        interval_us=section.whole("interval_us", 1, None) or 0,
        scrape_delay=_delay(section.section("hpa_scrape_delay")),
        windows=Windows(
            scale_up_us=section.whole("scale_up_stabilization_window_us", 0, None) or 0,
            scale_down_us=section.whole("scale_down_stabilization_window_us", 0, None) or 0,
        ),
        thresholds=_thresholds(section),
        analyzer=section.choice("analyzer", ANALYZERS) or next(iter(ANALYZERS)),
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
        tokens_per_request=section.whole("avg_input_tokens", 1, None) or default.tokens_per_request,
    )
