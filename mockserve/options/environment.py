"""vLLM's environment variables with an effect on this server."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from blis_sim.options import OptionError


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"{name} must be a whole number, got {text!r}") from error


def _switch(name: str, text: str) -> bool:
    return bool(_whole_number(name, text))


def _seconds(name: str, text: str) -> float | None:
    """Return a time in seconds; None for one that is not above zero, which vLLM ignores."""
    try:
        found = float(text)
    except ValueError as error:
        raise OptionError(f"{name} must be a number of seconds, got {text!r}") from error
    return found if 0 < found < float("inf") else None


def _variable(name: str, default: Any, read: Callable[[str, str], Any] = lambda _, text: text) -> Any:
    """Return the field of a variable; `read` makes the value of its text, None for the default. Raises OptionError."""
    return field(default=default, metadata={"variable": name, "read": read})


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """Settings from the environment; a flag for a setting wins over its variable."""

    api_key: str = _variable("VLLM_API_KEY", "")
    dev_mode: bool = _variable("VLLM_SERVER_DEV_MODE", False, _switch)
    """Enable the routes for developers."""
    allows_runtime_lora: bool = _variable(
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING", False, lambda _, text: text.strip().lower() in ("1", "true")
    )
    """Enable the routes that load and unload adapters."""
    stores_responses: bool = _variable("VLLM_ENABLE_RESPONSES_API_STORE", False, _switch)
    keep_alive_s: int = _variable("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5, _whole_number)
    """How long an idle connection stays open."""
    kv_events_use_int_hashes: bool = _variable("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", True, _switch)
    """Block hashes in KV events are 64-bit numbers instead of all their bytes."""
    side_channel_host: str = _variable("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
    """The host in `kv_transfer_params` from which other instances fetch KV blocks."""
    side_channel_port: int = _variable("VLLM_NIXL_SIDE_CHANNEL_PORT", 5600, _whole_number)
    python_hash_seed: str | None = _variable("PYTHONHASHSEED", None)
    """The seed of block hashes."""
    keeps_alive_on_engine_death: bool = _variable("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", False, _switch)
    """Keep reporting the engine's failure instead of ending the process."""
    logs_prompts: bool = _variable("VLLM_LOGGING_LEVEL", False, lambda _, text: text.strip().upper() == "DEBUG")
    """Whether request logs contain prompts."""
    allows_long_context: bool = _variable("VLLM_ALLOW_LONG_MAX_MODEL_LEN", False, _switch)
    """Allow a --max-model-len above the model's context."""
    log_stats_interval_s: float = _variable("VLLM_LOG_STATS_INTERVAL", 10.0, _seconds)
    """Time between log lines about throughput."""


def read_environment(variables: Mapping[str, str] | None = None) -> ServerEnvironment:
    """Read the settings from `variables`, by default of the process. Raises OptionError for an invalid value."""
    given = os.environ if variables is None else variables
    read = {
        each.name: each.metadata["read"](name, given[name])
        for each in fields(ServerEnvironment)
        if (name := each.metadata["variable"]) in given
    }
    return ServerEnvironment(**{name: value for name, value in read.items() if value is not None})
