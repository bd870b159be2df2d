"""Builds the cluster that options describe: deployments of its instances, their placement on nodes, its parts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionPolicy, AdmissionSettings, TenantBudgets
from blis_sim.engine.cluster.autoscaler import Autoscaler, Delay, Fleet, InstanceResources, Node, NodePool, Nodes
from blis_sim.engine.cluster.cluster import Cluster, DecisionLog
from blis_sim.engine.cluster.disaggregation import Disaggregation, Role
from blis_sim.engine.cluster.event_queue import ClusterEventKind
from blis_sim.engine.cluster.gateway import URGENCY, FlowControl, GatewayUrgency
from blis_sim.engine.cluster.horizontal import HorizontalSettings
from blis_sim.engine.cluster.options import ClusterOptions, pool_weights
from blis_sim.engine.cluster.policies import deployments_of, deployments_of_groups, policies_of
from blis_sim.engine.cluster.policy_file import MAX_NODES, PolicyFile, ScalingPolicy, with_interval
from blis_sim.engine.cluster.routing import ROUTERS, Router, RouterSettings, new_router
from blis_sim.engine.cluster.scorers import ScorerSettings
from blis_sim.engine.cluster.settings import DEFAULT_SEED, Freshness, Latencies, SeededTieBreaker, TieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup
from blis_sim.engine.deployment import Deployment, blocks_on, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.planner import bytes_per_block as planned_bytes_per_block
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES
from blis_sim.options import BlisError


def deployments_of_roles(options: ClusterOptions, deployment: Deployment) -> dict[Role | None, Deployment]:
    """Return the deployments by role, for roles that occur; `deployment` is that of roles without settings of their
    own. Raises EngineError."""
    deployments = {}
    for role in _roles(options):
        if role not in deployments:
            own = options_of_role(options, role)
            if own is options.deployment:
                deployments[role] = deployment
            else:
                deployments[role] = _resolved(own, f"{role} instances").with_config(lora=deployment.config.lora)
    return deployments


def _resolved(options: DeploymentOptions, owner: str) -> Deployment:
    try:
        return resolve(options)
    except BlisError as error:
        raise EngineError(f"{owner}: {error}") from None


def deployments_of_instances(options: ClusterOptions, deployments: list[Deployment]) -> list[Deployment]:
    """Return the deployments of all instances, by number, with what their roles change. Raises EngineError."""
    first = deployments[0]
    of_roles = {role: own for role, own in deployments_of_roles(options, first).items() if own is not first}
    found = []
    for role, deployment in zip(_roles(options), deployments, strict=True):
        if own := of_roles.get(role):
            deployment = own.with_config(slo_priorities=deployment.config.slo_priorities)
        found.append(deployment)
    return found


def bytes_per_block(options: ClusterOptions, deployment: Deployment) -> float:
    """Return the bytes of a block in transfer: those that one GPU of a prefill instance holds of it, because GPUs send
    side by side."""
    of_roles = deployments_of_roles(options, deployment)
    sender = of_roles.get(Role.PREFILL, deployment)
    config = sender.config
    return planned_bytes_per_block(sender.model, sender.tp, config.engine, config.block_size_tokens, sender.memory)


def _roles(options: ClusterOptions) -> tuple[Role | None, ...]:
    settings = options.disaggregation
    return (None,) * options.num_instances if settings is None else settings.pools.roles


def options_of_role(options: ClusterOptions, role: Role | None) -> DeploymentOptions:
    """The settings of an instance with that role."""
    shared = options.deployment
    if role not in (Role.PREFILL, Role.DECODE):
        return shared
    own: dict[str, Any] = {
        name: value
        for name in ("tp", "pp", "hardware", "latency_model", "max_model_len")
        if (value := getattr(options.pools, f"{role}_{name}"))
    }
    if not own:
        return shared
    model = own.get("latency_model", shared.latency_model)
    coefficients = shared.coefficients if model in ("", AUTO, "fitted", shared.latency_model) else None
    return replace(shared, coefficients=coefficients, **own)


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes with the initial instances on them."""

    policy: ScalingPolicy
    nodes: Nodes
    placed: list[Node]
    """The node of each initial instance, by instance number; instances without enough free GPUs are missing."""
    deployments: dict[str, Deployment]
    """Deployments by pool name."""
    gpus_per_instance: int

    @property
    def of_instances(self) -> list[Deployment]:
        """The deployments of the initial instances, by number."""
        return [self.deployments[node.pool.name] for node in self.placed]


def placement_of(options: ClusterOptions, deployment: Deployment) -> Placement | None:
    """Place the initial instances; None when the policy file has no node pools. Raises EngineError."""
    file = policies_of(options)
    policy = with_interval(file.scaling, options.model_autoscaler_interval_us)
    if isinstance(policy.autoscaler, HorizontalSettings):
        policy = _with_pods(policy, deployment, options.num_instances)
    if not policy.node_pools:
        if policy.decides:
            raise EngineError("an autoscaler needs node_pools in --policy-config, on which to start instances")
        return None
    others = {"separate pools for prompts and answers": options.pools.num_pooled, "instances": file.instances}
    what_has_pools = "node_pools of --policy-config" if file.scaling.node_pools else "--autoscaler"
    for what, is_there in others.items():
        if is_there:
            raise EngineError(f"{what_has_pools} cannot be used together with {what}")
    if file.slo_priorities is not None:
        deployment = deployment.with_config(slo_priorities=file.slo_priorities)
    nodes, num_gpus = Nodes(policy.node_pools), deployment.num_gpus
    placed = [node for _ in range(options.num_instances) if (node := nodes.place(num_gpus)) is not None]
    if not placed:
        raise EngineError(f"node_pools of --policy-config have no node with the {num_gpus} GPUs of an instance")
    deployments = {pool.name: _deployment_in_pool(options, deployment, pool) for pool in policy.node_pools}
    return Placement(policy, nodes, placed, deployments, num_gpus)


def _with_pods(policy: ScalingPolicy, deployment: Deployment, num_instances: int) -> ScalingPolicy:
    """Return the policy with a pool of machines for one instance each, as many as it asks for, where it has no pool."""
    if len(policy.node_pools) > 1:
        raise EngineError("--autoscaler needs at most one of node_pools in --policy-config, where it adds instances")
    if policy.node_pools:
        return policy
    pods = NodePool(
        name="pods",
        gpu_type=deployment.gpu.name,
        gpus_per_node=deployment.num_gpus,
        initial_nodes=num_instances,
        max_nodes=MAX_NODES,
    )
    return replace(policy, node_pools=(pods,))


def populate(cluster: Cluster, placement: Placement, new_engine: Callable[[Deployment], Engine | RankGroup]) -> None:
    """Start the placed instances of a cluster, and its autoscaler if the policy has one."""
    resources = InstanceResources(
        nodes=placement.nodes,
        gpus_per_instance=placement.gpus_per_instance,
        configs={name: deployment.config for name, deployment in placement.deployments.items()},
        new_engine=lambda pool: new_engine(placement.deployments[pool.name]),
        loading=placement.policy.loading,
    )
    fleet = Fleet(cluster, resources)
    for number, node in enumerate(placement.placed):
        fleet.place_first(number, node, placement.policy.starts_warm)
    if placement.policy.autoscaler is not None and placement.policy.decides:
        Autoscaler(cluster, placement.policy.autoscaler, fleet)


def _deployment_in_pool(options: ClusterOptions, deployment: Deployment, pool: NodePool) -> Deployment:
    """Return the deployment on the GPUs of a pool. Raises EngineError."""
    try:
        return _resolved_on(options, deployment, pool)
    except BlisError as error:
        raise EngineError(f"{options.policy_config}: node pool {pool.name!r}: {error}") from None


def _resolved_on(options: ClusterOptions, deployment: Deployment, pool: NodePool) -> Deployment:
    own = deployment
    if pool.gpu_type.lower() != deployment.gpu.name.lower():
        own = resolve(replace(options.deployment, hardware=pool.gpu_type))
        own = own.with_config(slo_priorities=deployment.config.slo_priorities, lora=deployment.config.lora)
    if not pool.gpu_memory_gib or options.deployment.total_kv_blocks is not None:
        return own
    gpu = replace(own.gpu, memory_gib=pool.gpu_memory_gib, cuda_memory_gib=0.0)
    own = replace(own, gpu=gpu)
    return own.with_blocks(blocks_on(options.deployment, own))


def build_cluster(
    options: ClusterOptions,
    deployment: Deployment,
    new_engine: Callable[[Deployment], Engine | RankGroup],
    ties: TieBreaker | None = None,
    decisions: DecisionLog | None = None,
    keeps_history: bool = True,
) -> Cluster:
    """Return the cluster that the options describe, even of one instance, at its beginning.

    Without `keeps_history` requests that have ended are forgotten.
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
    router = new_router(options.routing_policy, settings)
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
    for at, number in options.kills:
        cluster.add_background(at, ClusterEventKind.INSTANCE_LEAVES, partial(cluster.kill_now, number))
    if (flow_control := options.gateway.flow_control_settings) is not None:
        urgency = GatewayUrgency(deployment.config) if flow_control.dispatch_order == URGENCY else None
        FlowControl(cluster, flow_control, policies.slo_priorities or DEFAULT_SLO_PRIORITIES, urgency)
    if (disaggregation := options.disaggregation) is not None:
        # In BLIS all pools share the round-robin counter, so pools of even sizes use half of their instances.
        shared = router if options.deployment.engine == "blis" else new_router(options.routing_policy, settings)
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
    for owner, each in _own_deployments(options, deployment, placement):
        yield from (f"{owner}: {note}" for note in each.notes if note not in deployment.notes)
    policies = policies_of(options)
    sheds = policies.tier_shed_threshold is not None or policies.tier_shed_min_priority is not None
    if sheds and options.admission_policy != "tier-shed":
        yield "tier_shed_ settings of --policy-config have no effect without admission policy tier-shed"
    gaie = policies.gaie_queue_depth is not None or policies.gaie_kv_usage is not None
    if gaie and options.admission_policy != "gaie-legacy":
        yield "gaie_ settings of --policy-config have no effect without admission policy gaie-legacy"
    scaling = with_interval(policies.scaling, options.model_autoscaler_interval_us)
    yield from _notes_on_scaling(scaling)
    absent = [number for _, number in options.kills if number is not None and number >= options.num_instances]
    if absent and not scaling.decides:
        yield f"--kill names instance {absent[0]}: at the beginning there are {options.num_instances}, from 0 on"
    autoscaler = policies.scaling.autoscaler
    if autoscaler is not None and autoscaler.wakes and not options.gateway.flow_control:
        yield (
            "--autoscaler goes down to no instance, and then rejects what arrives: with --flow-control requests wait"
        )
    activation = autoscaler.activation if isinstance(autoscaler, HorizontalSettings) else None
    if activation is not None and activation.goes_to_zero and not activation.initial_cooldown_us:
        yield (
            "--autoscaler stops all first instances at once, as KEDA does before it has seen a request: "
            "initialCooldownPeriod of the ScaledObject keeps them"
        )


def _notes_on_scaling(scaling: ScalingPolicy) -> Iterator[str]:
    """Yield notes on scaling settings without effect, or with one that surprises."""
    if isinstance(scaling.autoscaler, HorizontalSettings) and scaling.loading == Delay():
        yield "instances that --autoscaler adds serve at once: give --cold-start"
    if scaling.autoscaler is not None and not scaling.decides:
        yield "autoscaler of --policy-config has no effect without interval_us or --model-autoscaler-interval-us"
    if not scaling.decides and any(pool.most_nodes > pool.initial_nodes for pool in scaling.node_pools):
        yield "max_nodes of --policy-config has no effect without an autoscaler, which alone buys nodes"
    has_places = scaling.node_pools or isinstance(scaling.autoscaler, HorizontalSettings)
    if not has_places and (scaling.loading != Delay() or scaling.starts_warm):
        yield "instance_lifecycle of --policy-config has no effect without node_pools"


def _own_deployments(
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
    said: dict[str, Any] = {
        "tier_shed_threshold": policies.tier_shed_threshold,
        "tier_shed_min_priority": policies.tier_shed_min_priority,
        "gaie_queue_depth": policies.gaie_queue_depth,
        "gaie_kv_usage": policies.gaie_kv_usage,
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
