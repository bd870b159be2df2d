"""The labels of `vllm:cache_config_info`: every setting of vLLM's KV cache, true where it means something here."""

from blis_sim.engine.deployment import Deployment
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
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
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
"""What vLLM says of features that are not simulated, as a server without them."""

DEFAULT_BLOCK_SIZE_TOKENS = 16


def cache_config_labels(options: ServeOptions, deployment: Deployment) -> dict[str, str]:
    """Label to value, `engine` left out."""
    config = deployment.config
    block_size = str(config.block_size_tokens)
    size_tokens = config.total_kv_blocks * config.block_size_tokens
    return {
        **FIXED,
        "block_size": block_size,
        "effective_attention_block_size": block_size,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(options.deployment.memory_utilization),
        "kv_cache_max_concurrency": str(size_tokens / config.limit_tokens),
        "kv_cache_size_tokens": str(size_tokens),
        "num_gpu_blocks": str(config.total_kv_blocks),
        "num_gpu_blocks_override": str(options.deployment.total_kv_blocks),
        "prefix_caching_hash_algo": options.kv_sharing.prefix_caching_hash_algo,
        "user_specified_block_size": str(config.block_size_tokens != DEFAULT_BLOCK_SIZE_TOKENS),
    }
