"""The labels of `vllm:cache_config_info`."""

from blis_sim.engine.deployment import Deployment
from blis_sim.engine.memory.kv_specs import STATE
from mockserve.options.serve import ServeOptions

FIXED = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "simple_cpu_offload_num_blocks": "None",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
}
"""vLLM's samples of features that are not simulated, as a server without them has them."""


def cache_config_labels(options: ServeOptions, deployment: Deployment) -> dict[str, str]:
    """Label to value, `engine` left out."""
    config = deployment.config
    states = [group.block_tokens for group in config.kv_groups if group.kind == STATE]
    others = [group.block_tokens for group in config.kv_groups if group.kind != STATE]
    block_size, size_tokens = str(min(others, default=config.block_size_tokens)), config.kv_size_tokens
    return {
        **FIXED,
        "block_size": block_size,
        "effective_attention_block_size": block_size,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(options.deployment.memory_utilization),
        "kv_cache_max_concurrency": str(size_tokens / config.limit_tokens),
        "kv_cache_size_tokens": str(size_tokens),
        "mamba_block_size": str(states[0] if states else None),
        "mamba_cache_mode": "align" if states and config.enable_prefix_caching else "none",
        "num_gpu_blocks": str(config.total_kv_blocks),
        "num_gpu_blocks_override": str(options.deployment.total_kv_blocks),
        "prefix_caching_hash_algo": options.kv_sharing.prefix_caching_hash_algo,
        "user_specified_block_size": str(options.deployment.block_size is not None),
    }
