"""Places the initial instances of a cluster on its nodes, and prepares the deployments of instances started later."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from blis_sim.engine.cluster.autoscaling.autoscaler import Autoscaler, Fleet, InstanceResources, Node, NodePool, Nodes
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import policies_of
from blis_sim.engine.cluster.policy_file import ScalingPolicy, with_interval
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, blocks_on, resolve
from blis_sim.engine.errors import EngineError
from blis_sim.options import BlisError


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
    if not policy.node_pools:
        if policy.autoscaler is not None:
            raise EngineError("an autoscaler needs node_pools in --policy-config, on which to start instances")
        return None
    others = {"separate pools for prompts and answers": options.pools.num_pooled, "instances": file.instances}
    for what, is_there in others.items():
        if is_there:
            raise EngineError(f"node_pools of --policy-config cannot be used together with {what}")
    if file.slo_priorities is not None:
        deployment = replace(deployment, config=replace(deployment.config, slo_priorities=file.slo_priorities))
    nodes, num_gpus = Nodes(policy.node_pools), deployment.num_gpus
    placed = [node for _ in range(options.num_instances) if (node := nodes.place(num_gpus)) is not None]
    if not placed:
        raise EngineError(f"node_pools of --policy-config have no node with the {num_gpus} GPUs of an instance")
    deployments = {pool.name: _on(options, deployment, pool) for pool in policy.node_pools}
    return Placement(policy, nodes, placed, deployments, num_gpus)


def populate(cluster: Cluster, placement: Placement, new_engine: Callable[[Deployment], Engine]) -> None:
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
    if placement.policy.autoscaler is not None:
        Autoscaler(cluster, placement.policy.autoscaler, fleet)


def _on(options: ClusterOptions, deployment: Deployment, pool: NodePool) -> Deployment:
    """Return the deployment on the GPUs of a pool. Raises EngineError."""
    try:
        return _resolved_on(options, deployment, pool)
    except BlisError as error:
        raise EngineError(f"{options.policy_config}: node pool {pool.name!r}: {error}") from None


def _resolved_on(options: ClusterOptions, deployment: Deployment, pool: NodePool) -> Deployment:
    own = deployment
    if pool.gpu_type.lower() != deployment.gpu.name.lower():
        own = resolve(replace(options.deployment, hardware=pool.gpu_type))
        own = replace(own, config=replace(own.config, slo_priorities=deployment.config.slo_priorities))
    if not pool.gpu_memory_gib or options.deployment.total_kv_blocks is not None:
        return own
    gpu = replace(own.gpu, memory_gib=pool.gpu_memory_gib, cuda_memory_gib=0.0)
    blocks = blocks_on(options.deployment, replace(own, gpu=gpu))
    capacity = replace(own.config, total_kv_blocks=blocks, max_model_len=0).kv_capacity_tokens
    config = replace(own.config, total_kv_blocks=blocks, max_model_len=min(own.config.max_model_len, capacity))
    return replace(own, gpu=gpu, config=config)
