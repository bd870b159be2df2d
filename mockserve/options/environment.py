"""vLLM's environment variables with an effect on this server."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from blis_sim.options import OptionError

DEFAULT_KEEP_ALIVE_S = 5
DEFAULT_SIDE_CHANNEL_PORT = 5600
DEFAULT_LOG_STATS_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """Settings from the environment; a flag for a setting wins over its variable."""

    api_key: str = ""
    """VLLM_API_KEY, used without --api-key."""
    dev_mode: bool = False
    """VLLM_SERVER_DEV_MODE: enable the routes for developers."""
    allows_runtime_lora: bool = False
    """VLLM_ALLOW_RUNTIME_LORA_UPDATING: enable the routes that load and unload adapters."""
    stores_responses: bool = False
    """VLLM_ENABLE_RESPONSES_API_STORE: store responses for later requests."""
    keep_alive_s: int = DEFAULT_KEEP_ALIVE_S
    """VLLM_HTTP_TIMEOUT_KEEP_ALIVE: how long an idle connection stays open."""
    kv_events_use_int_hashes: bool = True
    """VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES: block hashes in KV events as 64-bit numbers instead of all their bytes."""
    side_channel_host: str = "localhost"
    """VLLM_NIXL_SIDE_CHANNEL_HOST: the host in `kv_transfer_params` from which other instances fetch KV blocks."""
    side_channel_port: int = DEFAULT_SIDE_CHANNEL_PORT
    """VLLM_NIXL_SIDE_CHANNEL_PORT: the port in `kv_transfer_params` from which other instances fetch KV blocks."""
    python_hash_seed: str | None = None
    """PYTHONHASHSEED: the seed of block hashes."""
    keeps_alive_on_engine_death: bool = False
    """VLLM_KEEP_ALIVE_ON_ENGINE_DEATH: keep reporting the engine's failure instead of ending the process."""
    logs_prompts: bool = False
    """Whether VLLM_LOGGING_LEVEL is DEBUG, with which request logs contain prompts."""
    allows_long_context: bool = False
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN: allow a --max-model-len above the model's context."""
    log_stats_interval_s: float = DEFAULT_LOG_STATS_INTERVAL_S
    """VLLM_LOG_STATS_INTERVAL: time between log lines about throughput."""


def read_environment(variables: Mapping[str, str] | None = None) -> ServerEnvironment:
    """Read the settings from `variables`, by default of the process. Raises OptionError for an invalid value."""
    found = os.environ if variables is None else variables
    return ServerEnvironment(
        api_key=found.get("VLLM_API_KEY", ""),
        dev_mode=bool(_whole_number(found, "VLLM_SERVER_DEV_MODE", 0)),
        allows_runtime_lora=found.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in ("1", "true"),
        stores_responses=bool(_whole_number(found, "VLLM_ENABLE_RESPONSES_API_STORE", 0)),
        keep_alive_s=_whole_number(found, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", DEFAULT_KEEP_ALIVE_S),
        kv_events_use_int_hashes=bool(_whole_number(found, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", 1)),
        side_channel_host=found.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        side_channel_port=_whole_number(found, "VLLM_NIXL_SIDE_CHANNEL_PORT", DEFAULT_SIDE_CHANNEL_PORT),
        logs_prompts=found.get("VLLM_LOGGING_LEVEL", "").strip().upper() == "DEBUG",
        allows_long_context=bool(_whole_number(found, "VLLM_ALLOW_LONG_MAX_MODEL_LEN", 0)),
        log_stats_interval_s=_seconds(found, "VLLM_LOG_STATS_INTERVAL", DEFAULT_LOG_STATS_INTERVAL_S),
        python_hash_seed=found.get("PYTHONHASHSEED"),
        keeps_alive_on_engine_death=bool(_whole_number(found, "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", 0)),
    )


def _whole_number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"{name} must be a whole number, got {text!r}") from error


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    """Return a time in seconds; the default for one that is not above zero, as in vLLM."""
    text = variables.get(name, str(default))
    try:
        found = float(text)
    except ValueError as error:
        raise OptionError(f"{name} must be a number of seconds, got {text!r}") from error
    return found if 0 < found < float("inf") else default
