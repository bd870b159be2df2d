"""Mapping of the flags of llm-d-inference-sim to the settings of this server."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from blis_sim.options import options_from, options_of
from mockserve.inference_sim.options import FAILURE_TYPES, InferenceSimOptions
from mockserve.options.content import ToolArgumentOptions
from mockserve.options.engine_features import KVEventsConfig
from mockserve.options.serve import ServeOptions

FAULTS: Mapping[str, str] = {**{name: name for name in FAILURE_TYPES}, "server_error": "overloaded"}
"""Failure types of llm-d-inference-sim as faults here: its server error has status 503."""

BLOCKS_WITHOUT_CACHE = 1 << 20
"""KV blocks where no cache is simulated: they never run out."""


def serve_options(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> ServeOptions:
    """The options of one data-parallel rank's server."""
    names = options.served_model_name or (options.model,)
    return options_from(
        ServeOptions,
        model=options.model,
        served_model_name=names,
        port=options.port and options.port + rank,
        mode=options.mode,
        seed=options.seed,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_waiting_requests=options.max_waiting_queue_length,
        max_body_mb=options.max_request_body_size_mb,
        block_size=options.block_size,
        total_kv_blocks=options.kv_cache_size + 1 if options.enable_kvcache else BLOCKS_WITHOUT_CACHE,
        enable_prefix_caching=options.enable_kvcache,
        enable_lora=True,  # there, adapters may be loaded at any time
        lora_modules=options.lora_modules,
        max_loras=options.max_loras,
        max_cpu_loras=options.max_cpu_loras,
        enable_request_id_headers=options.enable_request_id_headers,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        tool_call_extra_probability=options.tool_call_extra_call_probability / 100,
        **{each.name: each.of(options.tool_arguments) for each in options_of(ToolArgumentOptions)},
        dataset_path=options.dataset_path,
        dataset_table_name=options.dataset_table_name,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        startup_s=options.ms("startup_duration") / 1000,
        kv_transfer_config=json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
        fake_metrics=options.fake_metrics,
        fault_rates=_fault_rates(options),
        fault_seed=options.seed,
        data_parallel_rank=rank,
        kv_events_config=_kv_events(options, environment, rank),
        pod_headers=_pod_headers(options, environment, rank),
        offers_ready_route=True,
        lenient_start=True,  # llm-d-inference-sim has no such checks
        accepted_without_effect=options.accepted_without_effect,
        **_times(options),
    )


def _times(options: InferenceSimOptions) -> dict[str, Any]:
    """The settings of set times."""
    by_length = options.ms("time_to_first_token") == 0 and options.ms("time_to_first_token_std_dev") == 0
    names = (
        "time_to_first_token",
        "time_to_first_token_std_dev",
        "inter_token_latency",
        "inter_token_latency_std_dev",
        "prefill_overhead",
        "prefill_time_per_token",
        "prefill_time_std_dev",
        "kv_cache_transfer_latency",
        "kv_cache_transfer_latency_std_dev",
        "kv_cache_transfer_time_per_token",
        "kv_cache_transfer_time_std_dev",
    )
    return {
        **{f"{name}_ms": options.ms(name) for name in names},
        "latency_calculator": options.latency_calculator or ("per-token" if by_length else "constant"),
        "time_factor_under_load": options.time_factor_under_load,
    }


def _fault_rates(options: InferenceSimOptions) -> tuple[str, ...]:
    kinds = options.failure_types or FAILURE_TYPES
    rate = options.failure_injection_rate / 100 / len(kinds)
    return tuple(f"{FAULTS[kind]}={rate}" for kind in kinds) if rate else ()


def _kv_events(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> str:
    """Published where there is a cache and an address to name in the topic."""
    pod_ip = environment.get("POD_IP", "")
    if not options.enable_kvcache or not pod_ip:
        return ""
    config = KVEventsConfig(
        enable_kv_cache_events=True,
        endpoint=options.zmq_endpoint,
        replay_endpoint=options.kv_events_replay_endpoint or None,
        buffer_steps=options.kv_events_replay_queue_size,
        topic=f"kv@{pod_ip}:{options.port + rank}@{options.model}",
    )
    return json.dumps(asdict(config))


def _pod_headers(options: InferenceSimOptions, environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """Return the headers that name the pod which answered, where its name is known."""
    found = {"x-inference-pod": environment.get("POD_NAME"), "x-inference-namespace": environment.get("POD_NAMESPACE")}
    known = {name: value for name, value in found.items() if value}
    if known:
        known["x-inference-port"] = str(options.port + rank)
    return tuple(f"{name}={value}" for name, value in known.items())
