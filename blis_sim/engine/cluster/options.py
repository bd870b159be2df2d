"""The flags of a cluster: number of instances, admission, routing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.disaggregation.options import PoolOptions
from blis_sim.engine.cluster.gateway.options import GatewayOptions
from blis_sim.engine.cluster.settings import DEFAULT_CACHE_DELAY_US, DEFAULT_REFRESH_INTERVAL_US
from blis_sim.engine.cluster.weights import DEFAULT_WEIGHTS, Weights, parse_weights
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import check_options, names_in, option, section

if TYPE_CHECKING:
    from blis_sim.engine.cluster.disaggregation.settings import DisaggregationSettings

MOST_INSTANCES = 10_000
_LORA = "lora-affinity"
_ADMISSIONS = names_in("blis_sim.engine.cluster.admission", "ADMISSIONS")
_ROUTERS = names_in("blis_sim.engine.cluster.routing", "ROUTERS")
_SCORERS = names_in("blis_sim.engine.cluster.scorers", "SCORERS")


def _about_scorers() -> str:
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
        at_most=MOST_INSTANCES,
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
        _about_scorers,
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
    model_autoscaler_interval_us: int = option(
        0,
        "Microseconds between decisions of the autoscaler; needs node_pools in --policy-config (default: interval_us "
        "of that file).",
        at_least=0,
        metavar="US",
        heading="Autoscaler",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.num_instances == 1 and self.pools.num_pooled > 1:  # a single instance has one role at most
            object.__setattr__(self, "num_instances", self.pools.num_pooled)
        self.deployment.check_coefficients(self.pools.prefill_latency_model, self.pools.decode_latency_model)
        _ = self.scorer_weights, self.disaggregation  # making them checks them

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
    def disaggregation(self) -> "DisaggregationSettings | None":
        """The roles of the instances; None when all compute prompts and answers. Raises EngineError."""
        return self.pools.disaggregation(self.num_instances)

    @property
    def has_cluster(self) -> bool:
        """Whether flags ask for more than one engine: several of them, decisions before it, or its scaling."""
        if self.num_instances > 1 or self.admission_policy != "always-admit":
            return True
        before_or_beside = (self.admission_latency, self.routing_latency, self.model_autoscaler_interval_us)
        return self.gateway.flow_control or self.pools.num_pooled > 0 or any(before_or_beside)
