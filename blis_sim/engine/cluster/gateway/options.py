"""The flags of a cluster's gateway."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.units import LONGEST_DELAY_US, Micros
from blis_sim.options import OptionError, check_options, ineffective_flags, names_in, option, options_of

if TYPE_CHECKING:
    from blis_sim.engine.cluster.gateway.rules import FlowControlSettings

DEFAULT_MAX_CONCURRENCY = 100
DEFAULT_TICK_INTERVAL_US: Micros = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """A queue in front of all instances."""

    flow_control: bool = option(
        False,
        "Queue requests in a gateway in front of the instances until the instances have room.",
        heading="Gateway of several instances",
    )
    saturation_detector: str = option(
        "never",
        "Measure of saturation for --flow-control: never saturated, utilization of queues and KV caches (mean), "
        "concurrency of requests in flight, or places (--max-num-seqs) taken on the instance with most of them free.",
        choices=names_in("blis_sim.engine.cluster.gateway.rules", "SATURATION_DETECTORS"),
    )
    queue_depth_threshold: float = option(
        5.0, "Waiting requests at which an instance is saturated, for --saturation-detector utilization.", above=0
    )
    kv_cache_util_threshold: float = option(
        0.8,
        "Used fraction of the KV cache at which an instance is saturated, for --saturation-detector utilization.",
        above=0,
        at_most=1,
    )
    max_concurrency: int | None = option(
        None,
        "Requests in flight per instance at which --saturation-detector concurrency reports saturation (default: "
        f"{DEFAULT_MAX_CONCURRENCY}).",
        at_least=1,
    )
    usage_limit_threshold: float = option(
        1.0,
        "Saturation at which --flow-control holds back the least important class; the most important class is held "
        "back at 1, the classes in between at values in between.",
        above=0,
        at_most=1,
    )
    dispatch_order: str = option(
        "fifo",
        "Order in which requests leave the queue of --flow-control: by class, within a class by arrival (fifo and "
        "priority, alike as in BLIS) or by end of the SLO target (slo-deadline); or by arrival alone (global-fifo); or "
        "by priority, which --priority-policy slo-urgency raises here, too, and then by deadline (urgency).",
        choices=names_in("blis_sim.engine.cluster.gateway.rules", "DISPATCH_ORDERS"),
    )
    fairness_policy: str = option(
        "global-strict",
        "Whether tenants take turns in the queue of --flow-control (round-robin) or make no difference.",
        choices=names_in("blis_sim.engine.cluster.gateway.rules", "FAIRNESS"),
    )
    gateway_slo_targets: str = option(
        "",
        "SLO targets by class, in microseconds from the entry into the queue, for requests without a target of their "
        "own; for --dispatch-order slo-deadline.",
        flags=("--slo-targets",),
        metavar="CLASS=US,...",
    )
    max_gateway_queue_depth: int = option(
        0, "Most requests in the queue of --flow-control; others are rejected. 0: no limit.", at_least=0
    )
    per_band_capacity: int = option(
        0, "Most requests of one importance in the queue of --flow-control. 0: no limit.", at_least=0
    )
    queue_shedding: bool = option(
        False, "Let a full queue drop a less important sheddable request instead of rejecting a more important one."
    )
    request_ttl: int = option(
        0, "Microseconds after which a request leaves the queue unserved; 0 for never.", at_least=0, metavar="US"
    )
    in_flight_eviction: bool = option(
        False, "Evict a sheddable request from a saturated instance when a request that is not sheddable waits."
    )
    dispatch_tick_interval: int = option(
        DEFAULT_TICK_INTERVAL_US,
        "Microseconds between attempts to dispatch, each of which lets at most one request pass; 0 attempts "
        "whenever a request ends instead.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.slo_targets_us  # raises for bad text

    @property
    def counts_requests_in_flight(self) -> bool:
        """Whether --max-concurrency is a limit of the gateway's saturation detector."""
        return self.flow_control and self.saturation_detector == "concurrency"

    @property
    def slo_targets_us(self) -> dict[str, Micros]:
        """The targets by class. Raises OptionError."""
        targets: dict[str, Micros] = {}
        for item in self.gateway_slo_targets.split(",") if self.gateway_slo_targets.strip() else ():
            slo_class, _, text = item.partition("=")
            if slo_class.strip() in targets:
                raise OptionError(f"--slo-targets names the class {slo_class.strip()!r} twice")
            if not slo_class.strip() or not text.strip().isdecimal() or int(text) == 0:
                raise OptionError(f"--slo-targets must be like critical=200000,batch=5000000, got {item.strip()!r}")
            targets[slo_class.strip()] = int(text)
        return targets

    @property
    def flow_control_settings(self) -> "FlowControlSettings | None":
        """The settings of the gateway; None without --flow-control."""
        if not self.flow_control:
            return None
        # Most simulations have no gateway, so its modules are imported here.
        from blis_sim.engine.cluster.gateway.rules import FlowControlSettings, QueueLimits, SaturationLimits

        return FlowControlSettings(
            dispatch_order=self.dispatch_order,
            fairness=self.fairness_policy,
            saturation_detector=self.saturation_detector,
            queue=QueueLimits(
                max_waiting=self.max_gateway_queue_depth,
                max_waiting_per_band=self.per_band_capacity,
                sheds=self.queue_shedding,
                usage_limit=self.usage_limit_threshold,
            ),
            saturation=SaturationLimits(
                num_waiting=self.queue_depth_threshold,
                kv_usage_fraction=self.kv_cache_util_threshold,
                max_in_flight=self.max_concurrency or DEFAULT_MAX_CONCURRENCY,
            ),
            slo_targets_us=self.slo_targets_us,
            ttl_us=self.request_ttl,
            evicts_in_flight=self.in_flight_eviction,
            tick_interval_us=self.dispatch_tick_interval,
        )


def gateway_flags_without_effect(options: GatewayOptions) -> Iterator[str]:
    """Yield a line for each flag of the gateway that has no effect."""
    if options.flow_control:
        yield from _detector_flags_without_effect(options)
        if options.gateway_slo_targets and options.dispatch_order != "slo-deadline":
            yield "--slo-targets has no effect without --dispatch-order slo-deadline"
        return
    own = {setting.name for setting in options_of(GatewayOptions)}
    # --max-concurrency also limits the concurrency of replayed requests.
    yield from ineffective_flags(options, dict.fromkeys(own - {"max_concurrency"}, "--flow-control"))


def _detector_flags_without_effect(options: GatewayOptions) -> Iterator[str]:
    if options.saturation_detector == "never":
        yield "--flow-control holds no request back without --saturation-detector utilization or concurrency"
    elif options.saturation_detector != "utilization":
        limits = ("queue_depth_threshold", "kv_cache_util_threshold")
        yield from ineffective_flags(options, dict.fromkeys(limits, "--saturation-detector utilization"))
