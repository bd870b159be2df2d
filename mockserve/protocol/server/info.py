"""The server's description of itself: the model list and the configuration in GET /server_info."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One card of the list: a name of the base model, or an adapter, whose `parent` is the base model."""

    name: str
    root: str
    parent: str | None = None
    max_model_len: int | None = None


def model_list(models: Sequence[ModelCard], created: int, permission_ids: Sequence[str]) -> dict[str, Any]:
    """One card per model. `permission_ids` are what follows `modelperm-`."""
    cards = [_card(model, created, permission) for model, permission in zip(models, permission_ids, strict=True)]
    return {"object": "list", "data": cards}


def _card(model: ModelCard, created: int, permission_id: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{permission_id}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
        "permission": [permission],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFacts:
    """Facts of a server's configuration, under vLLM's names."""

    model: str
    served_model_names: tuple[str, ...]
    tokenizer: str
    runner: str
    convert: str
    seed: int
    max_model_len: int
    block_size: int
    gpu_memory_utilization: float
    num_gpu_blocks: int
    enable_prefix_caching: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    async_scheduling: bool
    scheduler_policy: str
    device: str


def as_objects(facts: ConfigFacts) -> dict[str, Any]:
    """The configuration as nested objects."""
    names: Any = facts.served_model_names
    return {
        "model_config": {
            "model": facts.model,
            "runner": facts.runner,
            "convert": facts.convert,
            "tokenizer": facts.tokenizer,
            "seed": facts.seed,
            "max_model_len": facts.max_model_len,
            "served_model_name": names[0] if len(names) == 1 else list(names),
        },
        "cache_config": {
            "block_size": facts.block_size,
            "gpu_memory_utilization": facts.gpu_memory_utilization,
            "enable_prefix_caching": facts.enable_prefix_caching,
            "num_gpu_blocks": facts.num_gpu_blocks,
        },
        "parallel_config": {
            "pipeline_parallel_size": facts.pipeline_parallel_size,
            "tensor_parallel_size": facts.tensor_parallel_size,
            "data_parallel_size": facts.data_parallel_size,
            "world_size": facts.tensor_parallel_size * facts.pipeline_parallel_size,
        },
        "scheduler_config": {
            "runner_type": "pooling" if facts.runner == "pooling" else "generate",
            "max_num_batched_tokens": facts.max_num_batched_tokens,
            "max_num_seqs": facts.max_num_seqs,
            "max_model_len": facts.max_model_len,
            "enable_chunked_prefill": facts.enable_chunked_prefill,
            "policy": facts.scheduler_policy,
            "async_scheduling": facts.async_scheduling,
        },
        "device_config": {"device": facts.device, "device_type": "cuda"},
    }


def as_text(facts: ConfigFacts) -> str:
    """The configuration on one line."""
    names = facts.served_model_names
    parts = (
        f"model={facts.model!r}, speculative_config=None, tokenizer={facts.tokenizer!r}, skip_tokenizer_init=False",
        f"max_seq_len={facts.max_model_len}",
        f"tensor_parallel_size={facts.tensor_parallel_size}, pipeline_parallel_size={facts.pipeline_parallel_size}",
        f"data_parallel_size={facts.data_parallel_size}",
        f"kv_cache_dtype=auto, device_config=cuda, seed={facts.seed}",
        f"served_model_name={names[0] if len(names) == 1 else list(names)}",
        f"enable_prefix_caching={facts.enable_prefix_caching}, enable_chunked_prefill={facts.enable_chunked_prefill}",
    )
    return ", ".join(parts)
