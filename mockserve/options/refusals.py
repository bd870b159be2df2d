"""What cannot be had together: several instances, or several processes, and settings that do not go with them."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from blis_sim.options import OptionError
from mockserve.options.environment import ServerEnvironment

if TYPE_CHECKING:
    from mockserve.options.serve import ServeOptions


def check_cluster(options: "ServeOptions") -> None:
    """Raise OptionError for settings that do not go with a router in front."""
    if options.serves_cluster:
        for setting in _in_the_way_of_a_router(options):
            raise OptionError(f"{setting} cannot be used with {_cause(options)}")


def _in_the_way_of_a_router(options: "ServeOptions") -> Iterator[str]:
    facts = {
        "--data-parallel-size": options.deployment.dp > 1,
        "--api-server-count": options.network.api_server_count > 1,
        "--kv-transfer-config": options.kv_sharing.transfer.is_on,
    }
    yield from (setting for setting, is_set in facts.items() if is_set)
    if options.instances.instance_ports is not None and options.network.uds:
        yield "--uds"


def _cause(options: "ServeOptions") -> str:
    if options.cluster.num_instances > 1:
        return f"--num-instances {options.cluster.num_instances}"
    if options.instances.instance_ports is not None:
        return "--instance-ports"
    return "--enable-instance-control" if options.instances.enable_instance_control else "a router in front"


def check_processes(options: "ServeOptions", environment: ServerEnvironment) -> None:
    """Raise OptionError for settings that need the engines in the process that answers, or one process alone."""
    if options.network.api_server_count > 1:
        for setting in _in_the_way_of_processes(options, environment):
            raise OptionError(f"--api-server-count must be 1 with {setting}, got {options.network.api_server_count}")


def _in_the_way_of_processes(options: "ServeOptions", environment: ServerEnvironment) -> Iterator[str]:
    facts = {
        "--uds": bool(options.network.uds),
        "--speed max": math.isinf(options.speed),
        "--enable-fault-control": options.faults.enable_fault_control,
        "--enable-scale-out": options.routes.enable_scale_out,
        "--tokens-only": options.routes.tokens_only,
        "--kv-transfer-config": options.kv_sharing.transfer.is_on,
        "--kv-events-config": options.kv_sharing.events.publishes,
        "VLLM_SERVER_DEV_MODE": environment.dev_mode,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": environment.allows_runtime_lora,
        "VLLM_ENABLE_RESPONSES_API_STORE": environment.stores_responses,
    }
    return (setting for setting, is_set in facts.items() if is_set)
