"""The flags of a deployment that its memory depends on, as settings of the planner."""

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.drafting import drafter_of
from blis_sim.engine.engine_defaults import BatchLimits, engine_defaults
from blis_sim.engine.kv_cache.sizing import MemorySettings
from blis_sim.engine.memory.kv_specs import KV_DTYPE_BITS
from blis_sim.engine.memory.quantization import refused_quantization
from blis_sim.engine.model_spec import ModelSpec


def memory_settings(options: DeploymentOptions, limits: BatchLimits) -> MemorySettings:
    """Return the memory settings of the flags. Without --block-size the kernels decide, as in vLLM."""
    return MemorySettings(
        gpu_memory_utilization=options.memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=options.max_model_len,
        block_size=options.block_size or engine_defaults(options.engine).block_size_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        expert_parallel=options.enable_expert_parallel,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes or None,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        dtype=options.dtype,
        pp=options.pp,
        drafter=drafter_of(options),
        cpu_offload_bytes=int(options.cpu_offload_gb * 2**30),
    )


def modelled_settings(
    options: DeploymentOptions, model: ModelSpec, settings: MemorySettings, notes: list[str]
) -> MemorySettings:
    """Return the settings without types that are not modelled, with a warning for each that names the assumption."""
    if options.kv_cache_dtype not in ("auto", *KV_DTYPE_BITS):
        notes.append(f"warning: --kv-cache-dtype {options.kv_cache_dtype} is ignored: the KV cache is planned as auto")
        settings = settings._replace(kv_cache_dtype="auto")
    if model.checkpoint is not None and (problem := refused_quantization(model.checkpoint, options.quantization)):
        notes.append(f"warning: --quantization {options.quantization} is ignored: {problem}")
        settings = settings._replace(quantization="")
    return settings
