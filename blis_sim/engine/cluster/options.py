"""The flags of a cluster: number of instances, admission, routing, gateway, prefill/decode disaggregation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.settings import DEFAULT_CACHE_DELAY_US, DEFAULT_REFRESH_INTERVAL_US, LONGEST_DELAY_S
from blis_sim.engine.cluster.weights import DEFAULT_WEIGHTS, Weights, parse_weights
from blis_sim.engine.deployment_options import GPU_NAMES, MOST_RANKS, DeploymentOptions
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.latency.catalogue import is_path
from blis_sim.engine.latency.registry import LATENCY_MODELS
from blis_sim.engine.units import LONGEST_DELAY_US, Micros
from blis_sim.options import (
    ExclusionError,
    OptionError,
    check_options,
    ineffective_flags,
    names_in,
    option,
    options_of,
    section,
)
from blis_sim.options.durations import duration_ms, parse_duration_ms
from blis_sim.options.option import LATEST_US, LONGEST_BASE_LATENCY_MS, SLOWEST_GB_PER_S, load_json

if TYPE_CHECKING:
    from blis_sim.engine.cluster.disaggregation import DisaggregationSettings
    from blis_sim.engine.cluster.gateway import FlowControlSettings

# The flags of prefill/decode disaggregation: pools of instances, the decider, and transfers of KV blocks.

DEFAULT_THRESHOLD_TOKENS = 16
POOLS = "pools of prefill and decode"
"""The name of pools where it is stated how sure predictions are."""
_LATENCY_MODELS = ("", AUTO, *LATENCY_MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Which instances compute prompts, which answer."""

    prefill_instances: int = option(
        0,
        "Number of prefill-only instances. Prefill-only instances get the lowest instance numbers; the other pools "
        "follow.",
        at_least=0,
        heading="Prefill/decode disaggregation",
    )
    decode_instances: int = option(
        0, "Number of decode-only instances. Their numbers follow those of --prefill-instances.", at_least=0
    )
    prefill_decode_instances: int = option(
        0,
        "Number of instances for prefill and decode. Their numbers follow those of --decode-instances.",
        at_least=0,
    )
    encode_instances: int = option(
        0,
        "Number of instances set apart for encoders. Their numbers follow those of --prefill-decode-instances. "
        "Encoding takes no time.",
        at_least=0,
    )
    encode_decider: str = option(
        "never",
        "Which requests are encoded on --encode-instances. Encoding takes no time, so their times are the same.",
        choices=("never", "always", "multimodal"),
    )
    pd_decider: str = option(
        "never",
        "Which prompts a prefill instance computes: none, all, or those with more than --pd-prefix-threshold tokens "
        "missing from the decode instance's cache.",
        choices=names_in("blis_sim.engine.cluster.disaggregation", "DECIDERS"),
    )
    pd_prefix_threshold: int = option(
        DEFAULT_THRESHOLD_TOKENS,
        "Most missing prompt tokens that the decode instance computes itself with --pd-decider prefix-threshold.",
        at_least=0,
    )
    pd_transfer_bandwidth: float = option(
        25.0,
        "Bandwidth in GB per second of transfers of KV blocks from a prefill to a decode instance.",
        at_least=SLOWEST_GB_PER_S,
    )
    pd_transfer_base_latency: float = option(
        0.05,
        "Milliseconds added to each transfer of KV blocks.",
        at_least=0,
        at_most=LONGEST_BASE_LATENCY_MS,
    )
    pd_transfer_contention: bool = option(
        False, "Divide --pd-transfer-bandwidth by the number of transfers under way when a transfer starts."
    )
    prefill_routing_scorers: str = option(
        "",
        "Scorers that choose the prefill instance, as in --routing-scorers (default: those of --routing-policy).",
        metavar="SCORER:WEIGHT,...",
    )
    decode_routing_scorers: str = option(
        "",
        "Scorers that choose the decode instance, as in --routing-scorers (default: those of --routing-policy).",
        metavar="SCORER:WEIGHT,...",
    )
    prefill_tp: int = option(0, "--tp of prefill instances, if different.", at_least=0)
    prefill_pp: int = option(0, "--pp of prefill instances, if different.", at_least=0)
    prefill_hardware: str = option("", "--hardware of prefill instances, if different.", suggested=GPU_NAMES)
    prefill_latency_model: str = option(
        "", "--latency-model of prefill instances, if different.", choices=_LATENCY_MODELS
    )
    prefill_max_model_len: int = option(0, "--max-model-len of prefill instances, if different.", at_least=0)
    decode_tp: int = option(0, "--tp of decode instances, if different.", at_least=0)
    decode_pp: int = option(0, "--pp of decode instances, if different.", at_least=0)
    decode_hardware: str = option("", "--hardware of decode instances, if different.", suggested=GPU_NAMES)
    decode_latency_model: str = option(
        "", "--latency-model of decode instances, if different.", choices=_LATENCY_MODELS
    )
    decode_max_model_len: int = option(0, "--max-model-len of decode instances, if different.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        for flag, text in (
            ("--prefill-routing-scorers", self.prefill_routing_scorers),
            ("--decode-routing-scorers", self.decode_routing_scorers),
        ):
            _ = pool_weights(text, flag)  # making it checks it
        if self.pd_decider != "never" and not self.num_pooled:
            raise OptionError(
                f"--pd-decider {self.pd_decider} needs --prefill-instances and --decode-instances, "
                "or --prefill-decode-instances"
            )

    def disaggregation(self, num_instances: int) -> "DisaggregationSettings | None":
        """The roles of a cluster's instances; None when all compute prompts and answers. Raises EngineError."""
        if not self.num_pooled:
            return None
        # Most simulations have no pools, so their settings are imported here.
        from blis_sim.engine.cluster.disaggregation import DisaggregationSettings, Pools, TransferSettings

        pools = Pools(
            num_instances,
            self.prefill_instances,
            self.decode_instances,
            self.prefill_decode_instances,
            self.encode_instances,
        )
        transfer = TransferSettings(
            gb_per_s=self.pd_transfer_bandwidth,
            base_latency_ms=self.pd_transfer_base_latency,
            is_shared=self.pd_transfer_contention,
        )
        return DisaggregationSettings(
            pools=pools, decider=self.pd_decider, threshold_tokens=self.pd_prefix_threshold, transfer=transfer
        )

    @property
    def num_pooled(self) -> int:
        """Number of instances that have a role."""
        return self.prefill_instances + self.decode_instances + self.prefill_decode_instances + self.encode_instances

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Properties that no recorded server had."""
        return (POOLS,) if self.num_pooled else ()


def pool_weights(text: str, flag: str) -> Weights | None:
    """Parse the scorers of one pool; None for empty text. Raises EngineError."""
    return parse_weights(text, flag) if text.strip() else None


def notes_on_pools(options: PoolOptions, num_instances: int) -> Iterator[str]:
    """Yield a line for each flag of pools and transfers that has no effect, and for instances that serve nothing."""
    if options.num_pooled and options.num_pooled < num_instances:
        yield (
            f"warning: {num_instances - options.num_pooled} of {num_instances} instances have no role and get no "
            f"requests: --prefill-instances, --decode-instances and the like add up to {options.num_pooled}"
        )
    if options.prefill_decode_instances and options.pd_decider == "never":
        yield (
            "--prefill-decode-instances compute the prompts of their own requests without --pd-decider; "
            "--pd-decider always may send a prompt to another one"
        )
    needed = ""
    if not options.num_pooled:
        needed = "--prefill-instances and --decode-instances"
    elif options.pd_decider == "never":
        needed = "--pd-decider"
        if options.prefill_instances:
            yield "--prefill-instances get no requests without --pd-decider; --pd-decider always sends them all prompts"
    elif options.pd_decider != "prefix-threshold" and options.pd_prefix_threshold != DEFAULT_THRESHOLD_TOKENS:
        yield "--pd-prefix-threshold has no effect without --pd-decider prefix-threshold"
    if options.encode_decider != "never":
        if options.encode_instances:
            yield f"--encode-decider {options.encode_decider} has no effect: encoding takes no time wherever it happens"
        else:
            yield f"--encode-decider {options.encode_decider} has no effect without --encode-instances"
    own = {setting.name for setting in options_of(PoolOptions)} - {"encode_decider"}
    transfers = ("pd_prefix_threshold", "pd_transfer_bandwidth", "pd_transfer_base_latency", "pd_transfer_contention")
    if needed:
        yield from ineffective_flags(options, dict.fromkeys(transfers if options.num_pooled else own, needed))


# The flags of a cluster: number of instances, admission, routing, gateway.

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
        "Measure of saturation for --flow-control. It is never saturated, or measures the utilization of queues and "
        "KV caches (mean) or the concurrency of requests in flight. It can measure the places (--max-num-seqs) taken "
        "on the instance with most of them free.",
        choices=names_in("blis_sim.engine.cluster.gateway", "SATURATION_DETECTORS"),
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
        "Saturation at which --flow-control holds back the least important class. The most important class is held "
        "back at 1, the classes in between at values in between.",
        above=0,
        at_most=1,
    )
    dispatch_order: str = option(
        "fifo",
        "Order in which requests leave the queue of --flow-control. They leave by class, within a class by arrival "
        "(fifo and priority, alike as in BLIS) or by end of the SLO target (slo-deadline). global-fifo goes by "
        "arrival alone. urgency goes by priority, which --priority-policy slo-urgency raises here, too, and then by "
        "deadline.",
        choices=names_in("blis_sim.engine.cluster.gateway", "DISPATCH_ORDERS"),
    )
    fairness_policy: str = option(
        "global-strict",
        "Whether tenants take turns in the queue of --flow-control (round-robin) or make no difference.",
        choices=names_in("blis_sim.engine.cluster.gateway", "FAIRNESS"),
    )
    gateway_slo_targets: str = option(
        "",
        "SLO targets by class, in microseconds from the entry into the queue, for requests without a target of their "
        "own; for --dispatch-order slo-deadline. They decide between classes of equal importance only.",
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
        from blis_sim.engine.cluster.gateway import FlowControlSettings, QueueLimits, SaturationLimits

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


MAX_INSTANCES = 10_000
_LORA = "lora-affinity"
_ADMISSIONS = names_in("blis_sim.engine.cluster.admission", "ADMISSIONS")
_ROUTERS = names_in("blis_sim.engine.cluster.routing", "ROUTERS")
_SCORERS = names_in("blis_sim.engine.cluster.scorers", "SCORERS")


def _scorers_help() -> str:
    default = ",".join(f"{name}:{weight:g}" for name, weight in DEFAULT_WEIGHTS)
    return (
        f"Scorers of --routing-policy weighted with their weights (default: {default}). "
        f"Scorers: {', '.join(_SCORERS())}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Several instances of one deployment behind one door."""

    deployment: DeploymentOptions = section(DeploymentOptions)
    num_instances: int = option(
        1,
        "Instances behind one endpoint, each an engine of its own; without the flag as many as the pools have.",
        at_least=1,
        at_most=MAX_INSTANCES,
        heading="Several instances",
    )
    admission_policy: str = option(
        "always-admit", "Policy that admits or rejects requests.", choices=_ADMISSIONS, open_to=_ADMISSIONS
    )
    admission_latency: int = option(
        0,
        "Microseconds from the arrival of a request to its admission or rejection.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )
    token_bucket_capacity: float = option(
        10_000.0, "Capacity in prompt tokens for --admission-policy token-bucket.", above=0
    )
    token_bucket_refill_rate: float = option(
        1_000.0, "Prompt tokens per second that refill the bucket of --admission-policy token-bucket.", above=0
    )
    routing_policy: str = option(
        "round-robin", "Policy that picks the instance of a request.", choices=_ROUTERS, open_to=_ROUTERS
    )
    routing_latency: int = option(
        0,
        "Microseconds from the admission of a request until it enters its instance.",
        at_least=0,
        at_most=LONGEST_DELAY_US,
        metavar="US",
    )
    routing_scorers: str = option(
        "",
        _scorers_help,
        metavar="SCORER:WEIGHT,...",
    )
    lora_scorer_weight: float | None = option(
        None, "Weight of the scorer lora-affinity, after those of --routing-scorers.", above=0
    )
    snapshot_refresh_interval: int = option(
        DEFAULT_REFRESH_INTERVAL_US,
        "Microseconds between two reports of an instance on its queue, batch and KV cache; 0 for always.",
        at_least=0,
        metavar="US",
    )
    cache_signal_delay: int = option(
        DEFAULT_CACHE_DELAY_US,
        "Microseconds between two reports on the content of KV caches; 0 for always.",
        at_least=0,
        metavar="US",
    )
    policy_config: str | None = option(
        None,
        "YAML file with policies of admission, routing and scheduling, tenant budgets and groups of instances. Flags "
        "with a value other than their default take precedence.",
        metavar="FILE",
    )

    gateway: GatewayOptions = section(GatewayOptions)
    pools: PoolOptions = section(PoolOptions)
    autoscaler: str | None = option(
        None,
        "Manifest of a HorizontalPodAutoscaler of Kubernetes or a ScaledObject of KEDA that adds and removes "
        "instances.",
        metavar="FILE",
        heading="Autoscaler",
    )
    cold_start: str | None = option(
        None,
        "Time from the decision to start an instance until it serves, such as 45s; needs --autoscaler (default: "
        "loading_delay of --policy-config, else 0).",
        metavar="DURATION",
        heading="Autoscaler",
    )
    kill: str = option(
        "",
        "Kill instances at instants of the run, such as 60s,90s:2: the oldest one that serves, or the one of that "
        "number.",
        metavar="TIME[:NUMBER],...",
        heading="Autoscaler",
    )
    model_autoscaler_interval_us: float = option(
        0.0,
        "Microseconds between decisions of the autoscaler; needs node_pools in --policy-config (default: interval_us "
        "of that file).",
        at_least=0,
        at_most=LATEST_US,
        metavar="US",
        heading="Autoscaler",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.num_instances == 1 and self.pools.num_pooled > 1:  # a single instance has one role at most
            object.__setattr__(self, "num_instances", self.pools.num_pooled)
        if self.deployment.dp > 1 and (num_ranks := self.num_instances * self.deployment.dp) > MOST_RANKS:
            raise OptionError(f"--num-instances times --dp must be at most {MOST_RANKS}, got {num_ranks}")
        self.deployment.check_coefficients(self.pools.prefill_latency_model, self.pools.decode_latency_model)
        if self.cold_start is not None and self.autoscaler is None:
            raise OptionError("--cold-start needs --autoscaler")
        if self.autoscaler is not None and self.model_autoscaler_interval_us:
            raise ExclusionError("--autoscaler", "--model-autoscaler-interval-us")
        _ = self.scorer_weights, self.disaggregation, self.kills, self.cold_start_s  # making them checks them

    @property
    def scorer_weights(self) -> Weights:
        """Scorers of the weighted router with their weights. Raises EngineError."""
        weights = DEFAULT_WEIGHTS
        if self.routing_scorers.strip():
            weights = parse_weights(self.routing_scorers, "--routing-scorers")
        if self.lora_scorer_weight is None:
            return weights
        return (*((name, weight) for name, weight in weights if name != _LORA), (_LORA, self.lora_scorer_weight))

    @property
    def cold_start_s(self) -> float | None:
        """Seconds from the start of an instance until it serves; None where no flag says. Raises OptionError."""
        if self.cold_start is None or _is_zero(self.cold_start):
            return None if self.cold_start is None else 0.0
        found_s = duration_ms("--cold-start", str(self.cold_start)) / 1000
        if found_s > LONGEST_DELAY_S:
            raise OptionError(f"--cold-start must be at most {LONGEST_DELAY_S:g} s, got {self.cold_start!r}")
        return found_s

    @property
    def kills(self) -> tuple[tuple[Micros, int | None], ...]:
        """Instants at which instances are killed, with their numbers; None for the oldest one. Raises OptionError."""
        found: list[tuple[Micros, int | None]] = []
        for text in filter(None, (each.strip() for each in self.kill.split(","))):
            time, has_number, number = text.partition(":")
            if has_number and not (number.isdecimal() and len(number) < _MOST_DIGITS):
                raise OptionError(f"--kill must be TIME or TIME:NUMBER such as 60s:2, got {text!r}")
            at = 0 if _is_zero(time) else round(duration_ms("--kill", time) * 1000)
            if at > LATEST_US:
                raise OptionError(f"--kill must be at most {LATEST_US // 1_000_000} s, got {text!r}")
            found.append((at, int(number) if has_number else None))
        return tuple(found)

    @property
    def disaggregation(self) -> "DisaggregationSettings | None":
        """The roles of the instances; None when all compute prompts and answers. Raises EngineError."""
        return self.pools.disaggregation(self.num_instances)

    @property
    def has_cluster(self) -> bool:
        """Whether flags ask for more than one engine: several of them, decisions before it, or its scaling."""
        if self.num_instances > 1 or self.admission_policy != "always-admit":
            return True
        before_or_beside = (
            *(self.admission_latency, self.routing_latency, self.model_autoscaler_interval_us),
            *(self.autoscaler is not None, bool(self.kill.strip())),
        )
        return self.gateway.flow_control or self.pools.num_pooled > 0 or any(before_or_beside)


_MOST_DIGITS = 7
"""Digits of the number of an instance."""

# Paths among the settings of a cluster, which mean something on one machine alone.

_FILES = frozenset(
    (
        *("model_config_folder", "hardware_config", "coefficients", "operators"),
        *("network_config", "policy_config", "autoscaler"),
    )
)
"""Settings that name files whatever their value is."""


def path_in(name: str, value: object) -> str | None:
    """Return the path that the value of a setting is or has in it; None without one."""
    if name == "speculative_config":
        try:
            drafter = load_json(str(value)).get("model")
        except (ValueError, AttributeError):  # no JSON object, which its reader says
            return None
        return drafter if isinstance(drafter, str) and is_path(drafter) else None
    if name in _FILES or (isinstance(value, str) and is_path(value)):
        return str(value)
    return None


def _is_zero(text: str) -> bool:
    """Whether a duration is 0: an instance that is gone, or there, at the beginning is worth a rehearsal."""
    if text == "0":
        return True
    try:
        return parse_duration_ms(text) == 0
    except ValueError:
        return False
