"""The cluster that options describe, put together."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionPolicy, AdmissionSettings, TenantBudgets
from blis_sim.engine.cluster.autoscaling.pipeline import Delay
from blis_sim.engine.cluster.autoscaling.placement import Placement, placement_of, populate
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation.deployments import (
    bytes_per_block,
    deployments_of_instances,
    deployments_of_roles,
)
from blis_sim.engine.cluster.disaggregation.handover import Disaggregation
from blis_sim.engine.cluster.disaggregation.options import pool_weights
from blis_sim.engine.cluster.gateway.flow_control import FlowControl
from blis_sim.engine.cluster.gateway.rules import URGENCY
from blis_sim.engine.cluster.gateway.urgency import GatewayUrgency
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import deployments_of, deployments_of_groups, policies_of
from blis_sim.engine.cluster.policy_file import PolicyFile
from blis_sim.engine.cluster.reporting import DecisionLog
from blis_sim.engine.cluster.routing import ROUTERS, Router, RouterSettings
from blis_sim.engine.cluster.scorers import ScorerSettings
from blis_sim.engine.cluster.settings import DEFAULT_SEED, Freshness, Latencies, SeededTieBreaker, TieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.slo_classes import DEFAULT_SLO_PRIORITIES


def build_cluster(
    options: ClusterOptions,
    deployment: Deployment,
    new_engine: Callable[[Deployment], Engine],
    ties: TieBreaker | None = None,
    decisions: DecisionLog | None = None,
    keeps_history: bool = True,
) -> Cluster:
    """The cluster that the options describe, be it of one instance, at the beginning.

    Without `keeps_history` nothing is kept of requests that have ended.
    """
    policies = policies_of(options)
    placement = placement_of(options, deployment)
    deployments = _first_deployments(options, deployment, placement)
    engines = [new_engine(each) for each in deployments]
    admission = _admission(options, policies, sum(engine.config.max_num_seqs for engine in engines))
    settings = RouterSettings(
        ties=ties or SeededTieBreaker(DEFAULT_SEED),
        weights=options.scorer_weights,
        scorers=ScorerSettings(block_size_tokens=deployment.config.block_size_tokens),
    )
    router = ROUTERS[options.routing_policy](settings)
    decode_router = _pool_router(options.pools.decode_routing_scorers, settings)
    cluster = Cluster(
        engines,
        admission,
        decode_router or router,
        Freshness(refresh_interval_us=options.snapshot_refresh_interval, cache_delay_us=options.cache_signal_delay),
        Latencies(admission_us=options.admission_latency, routing_us=options.routing_latency),
        decisions,
    )
    if placement is not None:
        populate(cluster, placement, new_engine)
    if (flow_control := options.gateway.flow_control_settings) is not None:
        urgency = GatewayUrgency(deployment.config) if flow_control.dispatch_order == URGENCY else None
        FlowControl(cluster, flow_control, policies.slo_priorities or DEFAULT_SLO_PRIORITIES, urgency)
    if (disaggregation := options.disaggregation) is not None:
        # In BLIS all pools share the round-robin counter, so pools of even sizes use half of their instances.
        shared = router if options.deployment.engine == "blis" else ROUTERS[options.routing_policy](settings)
        prefill_router = _pool_router(options.pools.prefill_routing_scorers, settings) or shared
        num_bytes = bytes_per_block(options, deployment)
        Disaggregation(cluster, disaggregation, num_bytes, prefill_router, keeps_history)
    return cluster


def first_deployments(options: ClusterOptions, deployment: Deployment) -> list[Deployment]:
    """Return the deployments of the first instances, by number. Raises BlisError."""
    return _first_deployments(options, deployment, placement_of(options, deployment))


def _first_deployments(
    options: ClusterOptions, deployment: Deployment, placement: Placement | None
) -> list[Deployment]:
    if placement is not None:
        return placement.of_instances
    return deployments_of_instances(options, deployments_of(options, deployment))


def notes_on_instances(options: ClusterOptions, deployment: Deployment) -> Iterator[str]:
    """Yield notes for the user on the instances and their machines, a line each."""
    placement = placement_of(options, deployment)
    if placement is not None and len(placement.placed) < options.num_instances:
        num_absent = options.num_instances - len(placement.placed)
        yield f"{num_absent} of --num-instances {options.num_instances} find too few free GPUs and are absent"
    for whose, each in _unlike_others(options, deployment, placement):
        yield from (f"{whose}: {note}" for note in each.notes if note not in deployment.notes)
    policies = policies_of(options)
    sheds = policies.tier_shed_threshold is not None or policies.tier_shed_min_priority is not None
    if sheds and options.admission_policy != "tier-shed":
        yield "tier_shed_ settings of --policy-config have no effect without admission policy tier-shed"
    scaling = policies.scaling
    if not scaling.node_pools and (scaling.loading != Delay() or scaling.starts_warm):
        yield "instance_lifecycle of --policy-config has no effect without node_pools"


def _unlike_others(
    options: ClusterOptions, deployment: Deployment, placement: Placement | None
) -> Iterator[tuple[str, Deployment]]:
    """Yield the deployments of instances with settings of their own, and the owner of each."""
    for role, each in deployments_of_roles(options, deployment).items():
        yield f"{role} instances", each
    for number, each in enumerate(deployments_of_groups(options)):
        yield f"instances[{number}] of --policy-config", each
    if placement is not None:
        for name, each in placement.deployments.items():
            yield f"node pool {name!r}", each


def _pool_router(scorers: str, settings: RouterSettings) -> Router | None:
    """The router of one pool; None when it has none of its own."""
    weights = pool_weights(scorers, "scorers of a pool")
    return None if weights is None else ROUTERS["weighted"](replace(settings, weights=weights))


def _admission(options: ClusterOptions, policies: PolicyFile, num_seats: int) -> AdmissionPolicy:
    said = {
        "tier_shed_threshold": policies.tier_shed_threshold,
        "tier_shed_min_priority": policies.tier_shed_min_priority,
    }
    priorities = policies.slo_priorities or DEFAULT_SLO_PRIORITIES
    settings = AdmissionSettings(
        token_bucket_capacity=options.token_bucket_capacity,
        token_bucket_refill_rate=options.token_bucket_refill_rate,
        priorities=priorities,
        **{name: value for name, value in said.items() if value is not None},
    )
    admission = ADMISSIONS[options.admission_policy](settings)
    if not policies.tenant_budgets:
        return admission
    return TenantBudgets(admission, policies.tenant_budgets, num_seats, priorities)
