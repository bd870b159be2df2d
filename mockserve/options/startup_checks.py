"""vLLM's startup errors with its messages, and notes on flags without effect."""

import logging
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from blis_sim.engine.deployment import Deployment, is_known
from blis_sim.engine.engine_defaults import ADAPTIVE_ENGINES
from blis_sim.engine.memory.kv_groups import most_blocks
from blis_sim.engine.memory.planner import bytes_per_block
from blis_sim.options import StartError, ineffective_flags
from blis_sim.options.option import load_json
from mockserve.options.content import ContentOptions
from mockserve.options.engine_features import TransferConfig, read_transfer_config
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import (
    QUANTIZATION_KEYS,
    QUANTIZATION_METHODS,
    ServeOptions,
    classes_of,
    folder_config,
    folder_problems,
    is_encoder,
    unknown_quantization,
)
from mockserve.options.server import GENERATING_TASKS, OVERRIDES_READ, RouteOptions, config_overrides, tasks_of
from mockserve.options.vllm_flags import read_table

if TYPE_CHECKING:
    from mockserve.options.serve import ServeOptions


KV_CACHE_DTYPES = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "octave_k3v4"),
    *("octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head"),
    *("fp8_per_token_head", "nvfp4", "nvfp4_4over6"),
)
CHECKPOINT_METHODS = frozenset(
    {
        *("awq", "auto_awq", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto_gptq", "gptq"),
        *("gptq_marlin", "awq_marlin", "moe_wna16", "inc"),
    }
)
"""Quantization methods that require a quantized checkpoint."""
DETAILED_TRACES = "--collect-detailed-traces"
LONG_CONTEXT_WARNING = (
    "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative position encoding "
    "(RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute position encoding, "
    "positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds error."
)
MEMORY_ADVICE = (
    "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine. "
    "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)


_logger = logging.getLogger(__name__)


def startup_problems(options: "ServeOptions", deployment: Deployment, environment: ServerEnvironment) -> Iterator[str]:
    """Yield vLLM's reasons not to start, except those about parsers, which need the tokenizer."""
    yield from _unknown_types(options)
    yield from _refused_connector(options)
    yield from _traces_without_endpoint(options)
    yield from folder_problems(options.deployment.model)
    yield from _encoder_that_generates(options)
    yield from _context_beyond_model(options, deployment, environment)
    yield from _steps(options, deployment)
    yield from _unbalanced_experts(options, deployment)
    if options.deployment.enable_expert_parallel and not deployment.model.is_moe and is_known(options.deployment):
        yield "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
    if options.deployment.engine == "vllm" and tasks_of(options.routes) & GENERATING_TASKS:
        yield from _context_beyond_cache(options, deployment)


def refuse_start(options: "ServeOptions", problem: str) -> None:
    """Raise StartError for a reason that vLLM does not start; with --lenient-start, log a warning instead."""
    if not options.lenient_start:
        raise StartError(problem)
    _logger.warning("%s", problem)


def _unknown_types(options: "ServeOptions") -> Iterator[str]:
    kv_cache_dtype, quantization = options.deployment.kv_cache_dtype, options.deployment.quantization
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        yield f"Invalid kv_cache_dtype: {kv_cache_dtype!r}. Valid values are: {list(KV_CACHE_DTYPES)}"
    if quantization and quantization not in QUANTIZATION_METHODS:
        yield unknown_quantization(quantization)
    if quantization in CHECKPOINT_METHODS and _is_unquantized_folder(options.deployment.model):
        yield f"Cannot find the config file for {quantization}"


def _refused_connector(options: "ServeOptions") -> Iterator[str]:
    text = options.kv_sharing.kv_transfer_config
    transfer = read_transfer_config(text)
    connector = transfer.connector
    if connector and connector not in CONNECTORS and "kv_connector_module_path" not in load_json(text):
        yield f"Unsupported connector type: {connector}"
    deployment, file = options.deployment, options.offload.kv_offload_config
    has_size = transfer.has_store or deployment.kv_offloading_size or deployment.kv_cpu_blocks or file
    if connector == "OffloadingConnector" and not has_size:
        yield "cpu_bytes_to_use must be specified in kv_connector_extra_config"


def _traces_without_endpoint(options: "ServeOptions") -> Iterator[str]:
    if DETAILED_TRACES in options.accepted_without_effect and not options.observability.otlp_traces_endpoint:
        yield "collect_detailed_traces requires `--otlp-traces-endpoint` to be set."


def _encoder_that_generates(options: "ServeOptions") -> Iterator[str]:
    runner = options.routes.runner
    if runner in ("generate", "draft") and any(map(is_encoder, classes_of(options.deployment))):
        yield (
            f"Embedding models do not support `--runner {runner}`. "
            "Use `--runner pooling` or `--runner auto` for embedding models."
        )


def _unbalanced_experts(options: "ServeOptions", deployment: Deployment) -> Iterator[str]:
    given, dp = options.accepted_without_effect, options.deployment.dp
    if "--enable-eplb" not in given:
        if options.num_redundant_experts:
            yield (
                f"num_redundant_experts is set to {options.num_redundant_experts} but EPLB is not enabled. "
                "Either enable EPLB or unset num_redundant_experts."
            )
        return
    if not options.deployment.enable_expert_parallel:
        yield "enable_expert_parallel must be True to use EPLB."
    elif deployment.tp * dp <= 1 and "--prefill-context-parallel-size" not in given:
        yield (
            f"EPLB requires tensor, prefill-context, or data parallelism, but got TP={deployment.tp}, PCP=1, DP={dp}."
        )


def _is_unquantized_folder(model: str) -> bool:
    config = folder_config(model)
    return config is not None and not config.keys() & set(QUANTIZATION_KEYS)


def _context_beyond_model(
    options: "ServeOptions", deployment: Deployment, environment: ServerEnvironment
) -> Iterator[str]:
    longest, asked = deployment.model.max_model_len, options.deployment.max_model_len
    if 0 < longest < asked and not environment.allows_long_context:
        yield (
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={float(longest)} or model_max_length=None in model's config.json). "
            f"{LONG_CONTEXT_WARNING}"
        )


def _steps(options: "ServeOptions", deployment: Deployment) -> Iterator[str]:
    budget, most = deployment.config.max_num_batched_tokens, deployment.config.max_num_seqs
    if most > budget:
        yield f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({most})."
    context = options.deployment.max_model_len or deployment.model.max_model_len
    threshold = options.deployment.long_prefill_token_threshold
    if context and threshold > context:
        yield (f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({context}).")


def _context_beyond_cache(options: "ServeOptions", deployment: Deployment) -> Iterator[str]:
    """Yield a problem if a request of full context does not fit in the KV cache, unless the context is fitted to it."""
    requested = options.deployment.max_model_len or deployment.model.max_model_len
    config = deployment.config
    if options.fits_max_model_len or requested <= config.kv_capacity_tokens:
        return
    size = config.block_size_tokens
    block_bytes = bytes_per_block(deployment.model, deployment.tp, config.engine, size, deployment.memory)
    needed, available = math.ceil(requested / size) * block_bytes, config.kv_capacity_tokens / size * block_bytes
    if config.kv_groups:
        needed = most_blocks(config.kv_groups, requested, config.max_in_flight_tokens) * block_bytes
        available = (config.total_kv_blocks - 1) * block_bytes
    yield (
        f"To serve at least one request with the model's max seq len ({requested}), ({_gib(needed)} GiB KV cache is "
        f"needed, which is larger than the available KV cache memory ({_gib(available)} GiB). Based on the available "
        f"memory, the estimated maximum model length is {config.kv_capacity_tokens}. {MEMORY_ADVICE}"
    )


def _gib(num_bytes: float) -> float:
    return round(num_bytes / 2**30, 2)


def flags_without_effect(options: ServeOptions) -> Iterator[str]:
    """Yield one note for the user for each flag without effect."""
    needs = (
        (options.content.tools.enable_auto_tool_choice, "--enable-auto-tool-choice", ("tool_call_probability",)),
        (options.content.reasoning.reasoning_parser, "--reasoning-parser", ("default_reasoning_tokens",)),
        (options.content.dataset_path, "--dataset-path", ("dataset_table_name",)),
        (options.lora.enable_lora, "--enable-lora", ("max_loras", "max_cpu_loras", "lora_load_ms", "lora_swap_ms")),
        (
            options.kv_sharing.kv_transfer_config,
            "--kv-transfer-config",
            ("kv_transfer_gb_per_s", "kv_transfer_latency_ms"),
        ),
    )
    yield from ineffective_flags(
        options, {name: flag for is_there, flag, names in needs if not is_there for name in names}
    )
    if options.observability.enable_logging_iteration_details and (reason := _lacks_steps(options)):
        yield f"--enable-logging-iteration-details has no effect with {reason}"


def _lacks_steps(options: ServeOptions) -> str:
    """Return why no step of an engine is logged; empty where steps are."""
    if options.observability.disable_log_stats:
        return "--disable-log-stats"
    if options.timing.sets_times:
        return "--latency-calculator: set times have no steps"
    if options.deployment.engine in ADAPTIVE_ENGINES:
        return f"--engine {options.deployment.engine}, which reports no batches"
    return ""


_STORES = (
    "FlexKVConnectorV1", "HF3FSKVConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "MooncakeStoreConnector",
    "OffloadingConnector", "SimpleCPUOffloadConnector",
)  # fmt: skip
"""vLLM's connectors that keep KV blocks in CPU memory or in a store."""
CONNECTORS = (
    *_STORES, "DecodeBenchConnector", "ExampleConnector", "ExampleHiddenStatesConnector", "HiSparseConnector",
    "MoRIIOConnector", "MooncakeConnector", "MultiConnector", "NixlConnector", "NixlPullConnector",
    "NixlPushConnector",
)  # fmt: skip
"""vLLM's connectors; others come from a module named in the configuration."""


def warnings_of_tokenizer(options: ContentOptions) -> Iterator[str]:
    """Yield a warning for a tokenizer that would have to be loaded from a hub."""
    name = options.tokenizer_on_hub
    if name:
        yield (
            f"warning: --tokenizer {name} is no file here, and nothing is loaded from a hub. Tokens are counted "
            "without it; --tokenizer FOLDER names a folder with its tokenizer.json"
        )


def warnings_of_overrides(options: RouteOptions) -> Iterator[str]:
    """Yield a warning for members of --hf-overrides that do not act."""
    unread = sorted(config_overrides(options).keys() - OVERRIDES_READ)
    if unread:
        yield f"warning: {', '.join(unread)} of --hf-overrides are not modelled: the model's sizes stay as they are"


def warnings_of_connector(transfer: TransferConfig) -> Iterator[str]:
    """Yield a warning for a connector of --kv-transfer-config whose store of KV blocks is not fully modelled."""
    connector = transfer.connector
    if transfer.tiers:
        yield (
            f"warning: secondary_tiers are modelled but for {', '.join(transfer.tiers)}: tiers of type fs keep KV "
            "blocks that leave CPU memory, each on the device that device_class names"
        )
    lost = [each for each in transfer.others if each in _STORES]
    if lost:
        yield f"warning: the store of {' and of '.join(lost)} in {connector} is not modelled: no block is found there"
    if connector.startswith("LMCache"):
        yield (
            f"warning: the store of {connector} is modelled as CPU memory of this server alone: other instances find "
            "none of its KV blocks"
        )
    elif connector in _STORES and not transfer.has_store:
        yield (
            f"warning: the store of {connector} is not modelled: KV blocks that are evicted are lost, "
            "and other instances find none"
        )


def warnings_of(flags: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each accepted flag that is not modelled."""
    table = read_table()
    for flag in flags:
        if flag in table and table[flag].is_not_modelled:
            yield f"warning: {flag} is not modelled: {table[flag].here}"


def flags_without_observable_effect(flags: Iterable[str]) -> list[str]:
    """Return the accepted flags without an effect that a client or a prediction can observe."""
    table = read_table()
    return [flag for flag in flags if flag not in table or not table[flag].is_not_modelled]
