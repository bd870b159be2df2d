"""Settings of the server that is measured: what it says of itself, and a file for what it does not say."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from observe.client.client import Client
from observe.http.request import get_bytes
from observe.server.scraper import cache_settings, reading_of
from traces.server_settings import plausible, read_settings_file

_TIMEOUT_S = 5
_OF_CONFIG: Mapping[tuple[str, str], str] = {
    ("parallel_config", "tensor_parallel_size"): "tensor_parallel",
    ("parallel_config", "pipeline_parallel_size"): "pipeline_parallel",
    ("parallel_config", "data_parallel_size"): "data_parallel",
    ("parallel_config", "enable_expert_parallel"): "enable_expert_parallel",
    ("scheduler_config", "max_num_seqs"): "max_num_seqs",
    ("scheduler_config", "max_num_batched_tokens"): "max_num_batched_tokens",
    ("scheduler_config", "enable_chunked_prefill"): "enable_chunked_prefill",
    ("scheduler_config", "async_scheduling"): "async_scheduling",
    ("cache_config", "block_size"): "block_size",
    ("cache_config", "num_gpu_blocks"): "num_gpu_blocks",
    ("cache_config", "gpu_memory_utilization"): "gpu_memory_utilization",
    ("cache_config", "enable_prefix_caching"): "enable_prefix_caching",
    ("model_config", "model"): "model",
    ("model_config", "max_model_len"): "max_model_len",
}
"""Where `/server_info` has which setting."""
_LABELS: Mapping[str, type] = {
    "block_size": int,
    "num_gpu_blocks": int,
    "gpu_memory_utilization": float,
    "enable_prefix_caching": bool,
}
"""Settings that the labels of `vllm:cache_config_info` have, with their types."""


async def settings_of_server(client: Client, headers: Mapping[str, str], file: str | None) -> dict[str, Any]:
    """Return the settings that a server publishes, and those of `file`, which win. Raises TraceError.

    Routes that a server does not have are left out: `/server_info` is there in vLLM's development mode alone.
    """
    given = {} if file is None else read_settings_file(Path(file))

    async def fetched(path: str) -> Any:
        outcome = await client.fetch(get_bytes(client.server, path, headers), timeout_s=_TIMEOUT_S)
        return outcome.reply.json() if outcome.status == "ok" else None

    metrics = await client.fetch(get_bytes(client.server, "/metrics", headers), timeout_s=_TIMEOUT_S)
    labels: dict[str, str] = {}
    if metrics.reply.status_code == 200 and metrics.reply.complete:
        labels = cache_settings(reading_of(metrics.reply.text, client.clock.epoch_us(perf_counter_ns())))
    found = _of_labels(labels)
    found |= _of_models(await fetched("/v1/models"))
    version = _entry(await fetched("/version"), "version")
    found |= {} if version is None else {"version": version}
    config = _entry(await fetched("/server_info?config_format=json"), "vllm_config")
    configured = {name: _entry(_entry(config, part), key) for (part, key), name in _OF_CONFIG.items()}
    return {**plausible(found), **plausible(configured), **given}


def _of_labels(labels: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in _LABELS.items():
        with suppress(KeyError, ValueError):
            found[name] = labels[name] == "True" if kind is bool else kind(labels[name])
    return found


def _of_models(listed: Any) -> dict[str, Any]:
    """Return the context of the first model, and its root: the checkpoint behind the served name."""
    with suppress(KeyError, IndexError, TypeError):
        return {"max_model_len": listed["data"][0].get("max_model_len"), "model": listed["data"][0].get("root")}
    return {}


def _entry(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
