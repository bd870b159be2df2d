"""Vidur's planner of memory: weights of layers, and so many requests of the longest length beside them.

Embeddings, the output head and activations take nothing there. Facts: vidur/utils/memory_planner.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur.catalogue import VidurModel
from blis_sim.bench.vidur.experts import FP8, ExpertModel
from blis_sim.options import BlisError

_OUR_GPUS: Mapping[str, str] = {"a100": "A100-SXM", "h100": "H100"}
"""By Vidur's names, those of the catalogue."""
_ORIGINAL_TOKENS = 2
"""Tokens of each request that SimAI plans for models with experts."""
_BYTES = 2
"""Bytes of a weight, and of an element of the KV cache."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Requests of the longest length that fit at once on a replica, and its KV blocks."""

    num_requests: int | None
    """None where blocks decide."""
    num_blocks: int


def layer_parameters(model: VidurModel, tp: int) -> int:
    """Return the weights of a layer on one GPU."""
    embedding, heads, kv_heads = model.embedding_dim, model.num_q_heads, -(-model.num_kv_heads // tp)
    attention = embedding * model.head_size * (heads // tp + 2 * kv_heads) + embedding * model.head_size * (heads // tp)
    return attention + (3 if model.use_gated_mlp else 2) * embedding * model.mlp_hidden_dim // tp


def planned(
    model: VidurModel, gpu_gib: float, margin: float, tp: int, pp: int, max_tokens: int, block_size: int
) -> MemoryPlan:
    """Return the plan of a replica. Raises BenchError where no request fits."""
    kv_heads = -(-model.num_kv_heads // tp)
    weight_bytes = _BYTES * layer_parameters(model, tp) * (model.num_layers // pp)
    # The layers are those of the model, not of a stage: each stage holds the requests of all stages.
    request_bytes = 2 * _BYTES * model.head_size * kv_heads * max_tokens * model.num_layers
    num_requests = int((gpu_gib * 2**30 * (1 - margin) - weight_bytes) // request_bytes)
    if num_requests < 1:
        raise BenchError(
            f"{model.name} with {max_tokens} tokens of context does not fit in {gpu_gib:g} GiB on {tp} x {pp} GPUs"
        )
    return MemoryPlan(num_requests, max_tokens // block_size * num_requests * pp)


def planned_with_experts(
    model: ExpertModel,
    gpu_gib: float,
    margin: float,
    tp: int,
    pp: int,
    num_gpus: int,
    max_tokens: int,
    dtype: str,
    *,
    is_original: bool,
) -> MemoryPlan:
    """Return the plan of a replica, where `num_gpus` share the experts. Raises BenchError where no request fits.

    The original counts two tokens of each request, with all heads on every GPU. Latents are on every GPU.
    """
    width = 1 if dtype == FP8 else 2
    weight_bytes = model.weight_bytes(tp, num_gpus, dtype) / pp
    if is_original:
        request_bytes = width * model.kv_values(_ORIGINAL_TOKENS)
    else:
        request_bytes = (
            width * model.kv_values(max_tokens) // (1 if model.kv_lora_rank else min(tp, model.num_kv_heads))
        )
    num_requests = int((gpu_gib * 2**30 * (1 - margin) - weight_bytes) // request_bytes)
    if num_requests < 1:
        raise BenchError(f"{model.aicb_name} does not fit in {gpu_gib:g} GiB on each of {num_gpus} GPUs")
    return MemoryPlan(num_requests, num_requests)


def planned_as_vllm(
    model: VidurModel, device: str, gpu_gib: float, margin: float, tp: int, pp: int, max_tokens: int, block_size: int
) -> tuple[MemoryPlan, tuple[str, ...]]:
    """Return the plan of vLLM for a replica, and what is to be said of it. Raises BenchError.

    Vidur's plan stands for that of a model or a GPU which the catalogue does not have.
    """
    from blis_sim.engine.deployment import resolve
    from blis_sim.engine.deployment_options import DeploymentOptions

    try:
        options = DeploymentOptions(
            model=model.name,
            hardware=_OUR_GPUS.get(device, device),
            tp=tp,
            pp=pp,
            engine="sarathi" if block_size > 1 else "lightllm",
            latency_model="roofline",
            gpu_memory_utilization=1 - margin,
            max_model_len=max_tokens,
            block_size=block_size,
        )
        return MemoryPlan(None, resolve(options).config.total_kv_blocks), ()
    except BlisError as error:
        plan = planned(model, gpu_gib, margin, tp, pp, max_tokens, block_size)
        return plan, (f"KV blocks are counted as Vidur counts them: {error}",)
