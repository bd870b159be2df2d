"""The policies of flags and `--policy-config` together: a flag with another value than its default wins."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.options import BlisError, OptionError, options_of, with_settings
from blis_sim.options.option import Setting, parse_yaml_value

if TYPE_CHECKING:
    from blis_sim.engine.cluster.policy_file import InstanceGroup, PolicyFile

Options = TypeVar("Options", bound=ClusterOptions)

GROUP_SETTINGS = (
    "hardware",
    "tp",
    "dp",
    "latency_model",
    "alpha_coeffs",
    "beta_coeffs",
    "coefficients",
    "gpu_memory_utilization",
    "total_kv_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "max_model_len",
)
"""Settings in which instances of one cluster may differ. All serve one model, by the same rules, in blocks of one
size."""


def policies_of(options: ClusterOptions) -> "PolicyFile":
    """Return the content of the policy file, with the rules of --autoscaler in place of its own. Raises EngineError."""
    # Reading the file imports every policy.
    from blis_sim.engine.cluster.policy_file import PolicyFile, read_policy_file

    file = PolicyFile() if options.policy_config is None else read_policy_file(options.policy_config)
    if options.autoscaler is None:
        return file
    from blis_sim.engine.cluster.autoscaler import Delay
    from blis_sim.engine.cluster.autoscaler_manifest import read_manifest

    loading = file.scaling.loading if options.cold_start_s is None else Delay(mean=options.cold_start_s)
    scaling = replace(file.scaling, autoscaler=read_manifest(options.autoscaler), loading=loading, starts_warm=True)
    return replace(file, scaling=scaling)


def has_cluster(options: ClusterOptions) -> bool:
    """Whether there is more to simulate than one engine. Raises EngineError for a policy file that is none."""
    if options.has_cluster:
        return True
    if options.policy_config is None:
        return False
    policies = policies_of(options)
    return bool(policies.tenant_budgets or policies.scaling.node_pools or policies.scaling.decides)


def with_policies(options: Options) -> Options:
    """Return the options with the values of the file in place of defaults. Raises EngineError or OptionError."""
    if options.policy_config is None:
        return options
    file = policies_of(options)
    said: dict[str, object] = {
        "admission_policy": file.admission_policy,
        "token_bucket_capacity": file.token_bucket_capacity,
        "token_bucket_refill_rate": file.token_bucket_refill_rate,
        "routing_policy": file.routing_policy,
        "routing_scorers": ",".join(f"{name}:{weight!r}" for name, weight in file.scorers) or None,
        "priority_policy": file.priority_policy,
        "scheduler": file.scheduler,
        "preemption_policy": file.preemption_policy,
        "gateway_slo_targets": ",".join(f"{name}={target}" for name, target in file.slo_targets_us.items()) or None,
        "num_instances": sum(group.count for group in file.instances) or None,
    }
    settings = {setting.name: setting for setting in options_of(type(options))}
    taken = {
        name: value
        for name, value in said.items()
        if value is not None and settings[name].of(options) == settings[name].default
    }
    merged = with_settings(options, **taken)
    _check_count(merged, file)
    return merged


def deployments_of(options: ClusterOptions, deployment: Deployment) -> list[Deployment]:
    """Return the deployment of each instance, by number. Raises EngineError or OptionError."""
    if options.policy_config is None:
        return [deployment] * options.num_instances
    file = policies_of(options)
    if file.slo_priorities is not None:
        deployment = deployment.with_config(slo_priorities=file.slo_priorities)
    if not file.instances:
        return [deployment] * options.num_instances
    found = []
    for group, each in zip(file.instances, deployments_of_groups(options), strict=True):
        own = each.with_config(slo_priorities=deployment.config.slo_priorities, lora=deployment.config.lora)
        found += [own] * group.count
    return found


def deployments_of_groups(options: ClusterOptions) -> list[Deployment]:
    """Return the deployments of the entries under `instances` of the file. Raises OptionError."""
    return [_resolved(options, group, number) for number, group in enumerate(policies_of(options).instances)]


def _check_count(options: ClusterOptions, file: "PolicyFile") -> None:
    listed = sum(group.count for group in file.instances)
    if listed and listed != options.num_instances:
        raise OptionError(
            f"--num-instances must be the {listed} instances of {options.policy_config}, got {options.num_instances}"
        )


def options_of_groups(options: ClusterOptions) -> list[DeploymentOptions]:
    """Return the settings of the entries under `instances` of the file. Raises OptionError."""
    return [_group_options(options, group, number) for number, group in enumerate(policies_of(options).instances)]


def _resolved(options: ClusterOptions, group: "InstanceGroup", number: int) -> Deployment:
    own = _group_options(options, group, number)
    try:
        return resolve(own)
    except BlisError as error:
        raise OptionError(f"{options.policy_config}: instances[{number}]: {error}") from None


def _group_options(options: ClusterOptions, group: "InstanceGroup", number: int) -> DeploymentOptions:
    where = f"{options.policy_config}: instances[{number}]"
    for name in group.settings:
        if name not in GROUP_SETTINGS:
            raise OptionError(f"{where}: unknown key {name!r}, known are count, {', '.join(GROUP_SETTINGS)}")
    known = {setting.name: setting for setting in options_of(type(options.deployment))}
    try:
        given = {name: _value(known[name], value) for name, value in group.settings.items()}
        if given.get("latency_model", "fitted") not in (AUTO, "fitted"):
            given.setdefault("coefficients", None)  # those of the flag are for the others
        return with_settings(options.deployment, **given)
    except BlisError as error:
        raise OptionError(f"{where}: {error}") from None


def _value(setting: Setting, value: object) -> object:
    """Return the value of a setting, converted to its type. Raises OptionError."""
    if setting.kind is str and not isinstance(value, str):
        raise OptionError(f"{setting.name} must be text, got {value!r}")
    return parse_yaml_value(setting, value)
