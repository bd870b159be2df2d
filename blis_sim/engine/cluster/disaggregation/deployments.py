"""Deployments of a cluster's instances when prefill and decode instances differ in hardware or settings."""

from dataclasses import replace

from blis_sim.engine.cluster.disaggregation.settings import Role
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.sizing import bytes_per_block as planned_bytes_per_block
from blis_sim.options import BlisError


def deployments_of_roles(options: ClusterOptions, deployment: Deployment) -> dict[Role | None, Deployment]:
    """Return the deployments by role, for roles that occur; `deployment` is that of roles without settings of their
    own. Raises EngineError."""
    deployments = {}
    for role in _roles(options):
        if role not in deployments:
            own = options_of_role(options, role)
            deployments[role] = deployment if own is options.deployment else _resolved(own, f"{role} instances")
    return deployments


def _resolved(options: DeploymentOptions, whose: str) -> Deployment:
    try:
        return resolve(options)
    except BlisError as error:
        raise EngineError(f"{whose}: {error}") from None


def deployments_of_instances(options: ClusterOptions, deployments: list[Deployment]) -> list[Deployment]:
    """Return the deployments of all instances, by number, with what their roles change. Raises EngineError."""
    first = deployments[0]
    of_roles = {role: own for role, own in deployments_of_roles(options, first).items() if own is not first}
    found = []
    for role, deployment in zip(_roles(options), deployments, strict=True):
        if own := of_roles.get(role):
            deployment = replace(own, config=replace(own.config, slo_priorities=deployment.config.slo_priorities))
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
    shared, pools = options.deployment, options.pools
    if role is Role.PREFILL:
        tp, pp, hardware = pools.prefill_tp, pools.prefill_pp, pools.prefill_hardware
        latency_model, max_model_len = pools.prefill_latency_model, pools.prefill_max_model_len
    elif role is Role.DECODE:
        tp, pp, hardware = pools.decode_tp, pools.decode_pp, pools.decode_hardware
        latency_model, max_model_len = pools.decode_latency_model, pools.decode_max_model_len
    else:
        return shared
    if not (tp or pp or hardware or latency_model or max_model_len):
        return shared
    latency_model = latency_model or shared.latency_model
    return replace(
        shared,
        tp=tp or shared.tp,
        pp=pp or shared.pp,
        hardware=hardware or shared.hardware,
        latency_model=latency_model,
        coefficients=shared.coefficients if latency_model in ("", AUTO, "fitted") else None,
        max_model_len=max_model_len or shared.max_model_len,
    )
