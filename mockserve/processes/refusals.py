"""What a server in several processes cannot do: it is refused at the start."""

import math
from collections.abc import Iterator

from blis_options import OptionError
from mockserve.config import ServeOptions
from mockserve.environment import ServerEnvironment


def check_processes(options: ServeOptions, environment: ServerEnvironment) -> None:
    """Raise OptionError for settings that need the engines in the process that answers, or one process alone."""
    if options.api_processes > 1:
        for setting in _in_the_way(options, environment):
            raise OptionError(f"--api-processes must be 1 with {setting}, got {options.api_processes}")


def _in_the_way(options: ServeOptions, environment: ServerEnvironment) -> Iterator[str]:
    facts = {
        "--uds": bool(options.uds),
        "--speed max": math.isinf(options.speed),
        "--enable-fault-control": options.enable_fault_control,
        "--enable-scale-out": options.enable_scale_out,
        "--tokens-only": options.tokens_only,
        "--kv-transfer-config": options.kv_transfer.is_on,
        "--kv-events-config": options.kv_events.publishes,
        "VLLM_SERVER_DEV_MODE": environment.dev_mode,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": environment.allows_runtime_lora,
        "VLLM_ENABLE_RESPONSES_API_STORE": environment.stores_responses,
    }
    return (setting for setting, is_set in facts.items() if is_set)
