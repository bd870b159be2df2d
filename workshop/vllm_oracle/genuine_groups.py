"""vLLM's own specifications of KV cache groups."""

from typing import Any

import torch  # type: ignore[import-not-found]
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found]
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.memory import kv_groups
from blis_sim.engine.memory.kv_groups import CHUNKED, LATENT, SLIDING, STATE

_ATTENTION = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.bfloat16}


def kv_cache_config(ours: EngineConfig) -> Any:
    """Return vLLM's groups with the blocks of ours; one of full attention where ours has none."""
    groups = ours.kv_groups or (kv_groups.KVCacheGroupSpec("FullAttentionSpec", ours.block_size_tokens),)
    return KVCacheConfig(
        num_blocks=ours.total_kv_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{number}"], _spec(group, ours)) for number, group in enumerate(groups)
        ],
        prefix_cache_retention_interval=0 if ours.kv_groups else None,
    )


def attention_block_tokens(ours: EngineConfig) -> int:
    """Return vLLM's own block size: that of attention."""
    return min((group.block_tokens for group in ours.kv_groups if group.kind != STATE), default=ours.block_size_tokens)


def _spec(group: kv_groups.KVCacheGroupSpec, ours: EngineConfig) -> Any:
    size = group.block_tokens
    if group.kind == SLIDING:
        return SlidingWindowSpec(block_size=size, sliding_window=group.reach_tokens, **_ATTENTION)
    if group.kind == CHUNKED:
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=group.reach_tokens, **_ATTENTION)
    if group.kind == LATENT:
        return MLAAttentionSpec(block_size=size, **_ATTENTION)
    if group.kind == STATE:
        return MambaSpec(
            block_size=size,
            shapes=((1,),),
            dtypes=(torch.bfloat16,),
            mamba_cache_mode="align" if ours.enable_prefix_caching else "none",
            num_speculative_blocks=ours.speculation.num_tokens if ours.speculation else 0,
            num_prefill_checkpoint_blocks=int(group.checkpoint_tokens > 0),
            prefill_checkpoint_alignment=group.checkpoint_tokens or None,
        )
    return FullAttentionSpec(block_size=size, **_ATTENTION)
