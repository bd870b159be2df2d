"""From the options of a cluster to the cluster, or to the single engine if there is only one.

Modules that only a cluster needs are imported for a cluster: most simulations have one engine.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.disaggregation_options import notes_on_pools
from blis_sim.engine.cluster.options import ClusterOptions, gateway_flags_without_effect
from blis_sim.engine.cluster.policies import deployments_of, has_cluster
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.simulation import Simulation
from blis_sim.options import OptionError, ineffective_flags, options_of

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.cluster.reporting import DecisionLog
    from blis_sim.engine.cluster.settings import TieBreaker
    from blis_sim.engine.ranks import RankGroup

POOLED_RANKS = (
    "warning: with several instances or pipeline stages all data-parallel ranks are one batch and one KV cache: uneven "
    "loads and dummy steps are not simulated"
)
"""The note on ranks that share experts, where they are simulated as one engine."""


def build_simulation(
    options: ClusterOptions,
    deployment: Deployment,
    *,
    ties: "TieBreaker | None" = None,
    adjusted: Callable[[LatencyModel], LatencyModel] | None = None,
    reports_steps: bool = False,
    decisions: "DecisionLog | None" = None,
    reports_batches: bool = False,
) -> "Engine | RankGroup | Cluster":
    """Return the simulation that the options describe, at its beginning.

    `adjusted` changes models of step times. With `reports_batches` steps are reported, each with its batch. With
    `decisions`, where a cluster's are kept, it is always a cluster.
    """

    reports = reports_steps or reports_batches

    def new_engine(each: Deployment) -> Engine:
        latency = adjusted(each.latency) if adjusted else each.latency
        return Engine(each.config, latency, reports, reports_admissions=reports, reports_batches=reports_batches)

    if decisions is not None or has_cluster(options):
        from blis_sim.engine.cluster.assembly import build_cluster

        check_ranks(options, deployment)
        return build_cluster(options, deployment, new_engine, ties, decisions)
    (alone,) = deployments_of(options, deployment)
    if alone.has_own_ranks:
        from blis_sim.engine.lockstep_ranks import new_ranks

        def new_rank(config: EngineConfig, latency: LatencyModel) -> Engine:
            reports_steps = reports or not alone.shares_experts
            return Engine(config, latency, reports_steps, reports_admissions=reports, reports_batches=reports_batches)

        latency = adjusted(alone.latency) if adjusted else alone.latency
        assert alone.rank is not None
        return new_ranks(alone.rank, latency, alone.dp, new_rank, alone.shares_experts)
    return new_engine(alone)


def check_ranks(options: ClusterOptions, deployment: Deployment) -> None:
    """Raise OptionError for data-parallel ranks behind a router that are no single batch."""
    if deployment.rank is not None and not deployment.shares_experts:
        num_instances = options.num_instances * deployment.dp
        raise OptionError(
            f"--data-parallel-size must be 1 for instances of {deployment.model.name} behind a router, got "
            f"{deployment.dp}: its ranks share no experts, so give --num-instances {num_instances}"
        )


def notes_on_cluster(options: ClusterOptions, deployment: Deployment) -> Iterator[str]:
    """Yield notes for the user on the cluster, a line each."""
    has_pooled_ranks = deployment.rank is not None and deployment.shares_experts
    if has_pooled_ranks and (has_cluster(options) or not deployment.has_own_ranks):
        yield POOLED_RANKS
    if options.policy_config is not None or has_cluster(options):
        from blis_sim.engine.cluster.assembly import notes_on_instances

        yield from notes_on_instances(options, deployment)
    yield from flags_without_effect_on_cluster(options)
    yield from gateway_flags_without_effect(options.gateway)
    yield from notes_on_pools(options.pools, options.num_instances)


def notes_after_run(simulation: Simulation) -> Iterator[str]:
    """Warnings about a simulation that has ended, in a line each."""
    num_evicted = sum(engine.counters.num_reservations_evicted for engine in simulation.instances)
    if num_evicted:
        yield (
            f"warning: requests lost the KV blocks of their transferred prompts {num_evicted} times and computed these "
            "prompts again: too few KV blocks were free for the next request in the queue and nothing was running"
        )


def flags_without_effect_on_cluster(options: ClusterOptions) -> Iterator[str]:
    """Yield a line for each flag that has no effect."""
    if options.admission_policy != "token-bucket":
        of_bucket = [each.name for each in options_of(ClusterOptions) if each.name.startswith("token_bucket_")]
        yield from ineffective_flags(options, dict.fromkeys(of_bucket, "--admission-policy token-bucket"))
    if options.routing_policy != "weighted":
        scorers = ("routing_scorers", "lora_scorer_weight")
        yield from ineffective_flags(options, dict.fromkeys(scorers, "--routing-policy weighted"))
    if options.routing_policy != "round-robin" and not has_cluster(options):
        yield f"--routing-policy {options.routing_policy} has no effect with one instance"
