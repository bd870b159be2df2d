"""What each instance of a cluster runs on, when those that compute prompts differ from those that answer."""

from dataclasses import replace

from blis_sim.engine.cluster.disaggregation.options import PoolOptions
from blis_sim.engine.cluster.disaggregation.pools import Role
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.sizing import kv_bytes_per_token
from blis_sim.options import BlisError


def deployments_of_roles(options: PoolOptions, deployment: Deployment) -> dict[Role | None, Deployment]:
    """By role, for those that occur; `deployment` is everybody's without settings of their own. Raises EngineError."""
    deployments = {}
    for role in _roles(options):
        if role not in deployments:
            own = options_of_role(options, role)
            deployments[role] = deployment if own is options else _resolved(own, f"{role} instances")
    return deployments


def _resolved(options: PoolOptions, whose: str) -> Deployment:
    try:
        return resolve(options)
    except BlisError as error:
        raise EngineError(f"{whose}: {error}") from None


def deployments_of_instances(options: PoolOptions, deployments: list[Deployment]) -> list[Deployment]:
    """Those of all instances, by number, with what their roles change. Raises EngineError."""
    first = deployments[0]
    of_roles = {role: own for role, own in deployments_of_roles(options, first).items() if own is not first}
    found = []
    for role, deployment in zip(_roles(options), deployments, strict=True):
        if own := of_roles.get(role):
            deployment = replace(own, config=replace(own.config, slo_priorities=deployment.config.slo_priorities))
        found.append(deployment)
    return found


def bytes_per_block(options: PoolOptions, deployment: Deployment) -> float:
    """Of a block on its way, which is as much as one GPU of a prefill instance holds of it: GPUs send side by side."""
    of_roles = deployments_of_roles(options, deployment)
    sender = of_roles.get(Role.PREFILL, deployment)
    per_token = kv_bytes_per_token(sender.model, sender.tp, sender.config.scheduling)
    return per_token * sender.config.block_size_tokens


def _roles(options: PoolOptions) -> tuple[Role | None, ...]:
    settings = options.disaggregation
    return (None,) * options.num_instances if settings is None else settings.pools.roles


def options_of_role(options: PoolOptions, role: Role | None) -> PoolOptions:
    """The settings of an instance with that role."""
    if role is Role.PREFILL:
        tp, hardware = options.prefill_tp, options.prefill_hardware
        latency_model, max_model_len = options.prefill_latency_model, options.prefill_max_model_len
    elif role is Role.DECODE:
        tp, hardware = options.decode_tp, options.decode_hardware
        latency_model, max_model_len = options.decode_latency_model, options.decode_max_model_len
    else:
        return options
    if not (tp or hardware or latency_model or max_model_len):
        return options
    latency_model = latency_model or options.latency_model
    return replace(
        options,
        tp=tp or options.tp,
        hardware=hardware or options.hardware,
        latency_model=latency_model,
        coefficients=options.coefficients if latency_model in ("", AUTO, "fitted") else None,
        max_model_len=max_model_len or options.max_model_len,
    )
