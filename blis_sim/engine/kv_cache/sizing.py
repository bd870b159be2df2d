"""The number of KV blocks that fit beside the weights, which vLLM measures by profiling, estimated from sizes.

`planned_memory` plans a checkpoint as vLLM does. `kv_blocks` counts BLIS's way, from the sizes of a model alone, which
also serves checkpoints that cannot be planned.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, available_kv_bytes, plan_layout
from blis_sim.engine.memory.shapes import ShardingError
from blis_sim.engine.specs import GpuSpec, ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.memory.drafters import DrafterRequest

_GIB = 2**30
_MAX_MEMORY_GIB = 1e6
_ACTIVATION_GIB_DENSE = 5.5
_ACTIVATION_GIB_MOE = 8.0
_OTHER_GIB_ONE_GPU = 0.15
_OTHER_GIB_PER_GPU = 0.6
_GATED_ACTIVATIONS = ("", "silu", "swiglu", "geglu", "situ")
"""Activations of models whose weights BLIS counts."""
_PLAIN_ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu")
"""Activations of an MLP of two matrices; with any other it has three."""


_MAX_PLANNED_GPUS = 64


class MemorySettings(NamedTuple):
    """Settings of a deployment for memory. A `block_size` of 0 leaves it to the kernels of the model.

    `kv_cache_memory_bytes` are those of every GPU; None takes what is left of `gpu_memory_utilization`.
    """

    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int = 0
    block_size: int = 0
    enable_prefix_caching: bool = True
    expert_parallel: bool = False
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str = ""
    dtype: str = "auto"
    pp: int = 1
    cpu_offload_bytes: int = 0
    """Weights of every GPU that stay in CPU memory, in bytes."""
    drafter: "DrafterRequest | None" = None


def planned_layout(model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, settings: MemorySettings) -> MemoryLayout:
    """Return weights and KV cache groups as vLLM plans them. Raises EngineError for what cannot be planned."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to plan its memory from")
    return plan_layout(
        PlanRequest(
            config=model.checkpoint.config,
            hf_quant_config=model.checkpoint.hf_quant_config,
            model=model.name,
            tp=tp,
            pp=settings.pp,
            dp=dp,
            expert_parallel=settings.expert_parallel,
            dtype=settings.dtype,
            kv_cache_dtype=settings.kv_cache_dtype,
            quantization=settings.quantization,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len or model.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_prefix_caching=settings.enable_prefix_caching,
            capability_major=int(gpu.compute_capability),
            drafter=settings.drafter,
        )
    )


def planned_with_drafter(
    model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, settings: MemorySettings, notes: list[str]
) -> MemoryLayout:
    """Return the planned layout, without the drafter and with a warning where the drafter is what cannot be planned."""
    try:
        return planned_layout(model, gpu, tp, dp, settings)
    except ShardingError:
        raise
    except EngineError as error:
        if settings.drafter is None:
            raise
        layout = planned_layout(model, gpu, tp, dp, settings._replace(drafter=None))
        notes.append(f"warning: weights and KV cache of the drafter take no GPU memory: {error}")
        return layout


def planned_blocks(layout: MemoryLayout, model: ModelSpec, gpu: GpuSpec, dp: int, settings: MemorySettings) -> int:
    """Return the KV blocks of an instance, of all its replicas when it is a model with experts.

    Raises EngineError when the memory is not known or the weights leave no room; the text then names the smallest tp
    that does.
    """
    if settings.kv_cache_memory_bytes is None:
        _check_memory(gpu)
    blocks = layout.num_blocks(_kv_bytes(layout, gpu, settings))
    if blocks < 1:
        raise EngineError(_no_planned_room(layout, model, gpu, dp, settings))
    return blocks * dp if model.is_moe else blocks


def _kv_bytes(layout: MemoryLayout, gpu: GpuSpec, settings: MemorySettings) -> int:
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    offloaded = min(settings.cpu_offload_bytes, max(layout.weight_bytes_per_gpu))
    return offloaded + available_kv_bytes(
        layout,
        gpu,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
    )


def _no_planned_room(layout: MemoryLayout, model: ModelSpec, gpu: GpuSpec, dp: int, settings: MemorySettings) -> str:
    def fits(tp: int) -> bool:
        try:
            wider = planned_layout(model, gpu, tp, dp, settings)
        except EngineError:
            return False
        return wider.num_blocks(_kv_bytes(wider, gpu, settings)) > 0

    enough = next(filter(fits, range(layout.tp + 1, _MAX_PLANNED_GPUS + 1)), None)
    return _room_advice(model, gpu, layout.tp, settings.gpu_memory_utilization, enough)


def kv_blocks(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    dp: int = 1,
    block_size_tokens: int = 16,
    gpu_memory_utilization: float = 0.9,
    engine: str = "vllm",
) -> int:
    """Blocks of `block_size_tokens` that fit on `tp` GPUs, times `dp` replicas of a model with experts.

    Every GPU of an instance holds its part of every block. vLLM divides the memory that is free on one GPU by the bytes
    that one GPU holds of a block; BLIS divides the memory that is free on all of them by those bytes.

    Raises EngineError when the model's sizes do not allow an estimate, or when the weights leave no room; the text
    then names the smallest tp that does.
    """
    _check(model, gpu, engine)
    sharded = _sharded(model, tp, engine)
    free_bytes = _free_gib(sharded, gpu, tp, gpu_memory_utilization) * _GIB
    if engine != "blis":
        free_bytes /= tp
    block_bytes = int(kv_bytes_per_token(model, tp, engine) * block_size_tokens)
    blocks = int(free_bytes) // block_bytes if free_bytes > 0 else 0
    if blocks < 1:
        raise EngineError(_no_room(model, gpu, tp, gpu_memory_utilization, engine))
    return blocks * dp if model.is_moe else blocks


def weight_bytes(model: ModelSpec) -> int:
    """Bytes of all parameters: embeddings, attention, norms, MLPs and output head."""
    hidden = model.hidden_size
    kv_size = model.num_kv_heads * model.cache_head_dim
    attention = hidden * (hidden + 2 * kv_size) + hidden * hidden + 2 * hidden
    embeddings = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    parameters = embeddings + model.num_layers * attention + _mlp_parameters(model) + hidden
    return int(parameters * model.bytes_per_weight)


def _mlp_parameters(model: ModelSpec) -> int:
    """Three matrices per MLP, two without a gate. Interleaved dense layers count as layers with experts here."""
    hidden = model.hidden_size
    if not model.is_moe:
        matrices = 2 if model.hidden_act.lower() in _PLAIN_ACTIVATIONS else 3
        return model.num_layers * matrices * hidden * model.intermediate_size
    num_dense = min(model.first_k_dense_replace, model.num_layers)
    experts_and_router = model.num_experts * 3 * hidden * model.expert_size + model.num_experts * hidden
    moe_layer = experts_and_router + 3 * hidden * model.shared_expert_size
    return num_dense * 3 * hidden * model.dense_size + (model.num_layers - num_dense) * moe_layer


def kv_bytes_per_token(model: ModelSpec, tp: int, engine: str = "vllm") -> float:
    """Bytes of one token's keys and values on one GPU. Every GPU holds a compressed latent in full.

    Where GPUs outnumber KV heads, each GPU holds one head in vLLM, and a fraction of one in BLIS.
    """
    if model.is_mla:
        return model.num_layers * (model.kv_lora_rank + model.qk_rope_head_dim) * model.bytes_per_activation
    if model.num_kv_heads >= tp and model.num_kv_heads % tp:
        raise EngineError(f"{model.name} has {model.num_kv_heads} KV heads, which tp {tp} does not divide")
    per_layer = 2 * model.cache_head_dim * _sharded(model, tp, engine).num_kv_heads
    return model.num_layers * per_layer * model.bytes_per_activation / tp


def bytes_per_block(
    model: ModelSpec, tp: int, engine: str, block_size_tokens: int, layout: MemoryLayout | None
) -> float:
    """Bytes of one block on one GPU: as planned, without a plan from the sizes of the model alone."""
    if layout is not None and layout.groups:
        return max(layout.block_bytes_per_gpu)
    return kv_bytes_per_token(model, tp, engine) * block_size_tokens


def _sharded(model: ModelSpec, tp: int, engine: str) -> ModelSpec:
    """`model` with as many KV heads as all of its GPUs hold. vLLM copies heads until each GPU has one."""
    if engine == "blis" or model.is_mla or model.num_kv_heads >= tp:
        return model
    return replace(model, num_kv_heads=tp, head_dim=model.cache_head_dim)


def _free_gib(model: ModelSpec, gpu: GpuSpec, tp: int, gpu_memory_utilization: float) -> float:
    available = gpu.memory_gib * gpu_memory_utilization * tp
    activation = _ACTIVATION_GIB_MOE if model.is_moe else _ACTIVATION_GIB_DENSE
    other = (_OTHER_GIB_ONE_GPU if tp == 1 else _OTHER_GIB_PER_GPU) * tp
    return available - (weight_bytes(model) / _GIB + activation + other)


def _no_room(model: ModelSpec, gpu: GpuSpec, tp: int, gpu_memory_utilization: float, engine: str) -> str:
    def fits(count: int) -> bool:
        return _free_gib(_sharded(model, count, engine), gpu, count, gpu_memory_utilization) > 0

    most = model.num_kv_heads if engine == "blis" else model.num_heads
    shardings = (
        count
        for count in range(tp + 1, most + 1)
        if model.num_heads % count == 0 and (count > model.num_kv_heads or model.num_kv_heads % count == 0)
    )
    enough = next(filter(fits, shardings), None)
    return _room_advice(model, gpu, tp, gpu_memory_utilization, enough)


def _room_advice(model: ModelSpec, gpu: GpuSpec, tp: int, gpu_memory_utilization: float, enough: int | None) -> str:
    advice = f"it needs tp {enough} or more" if enough else "no tp is enough"
    memory = f"{tp} {gpu.name} with {gpu.memory_gib:g} GiB at {gpu_memory_utilization:g} utilization"
    return f"{model.name} leaves no room for a KV cache on {memory}: {advice}"


def _check_memory(gpu: GpuSpec) -> None:
    advice = "give --num-gpu-blocks-override instead"
    if gpu.memory_gib <= 0:
        raise EngineError(f"the memory of GPU {gpu.name} is not known, so its KV blocks cannot be counted; {advice}")
    if gpu.memory_gib > _MAX_MEMORY_GIB:
        raise EngineError(f"GPU {gpu.name} must have at most {_MAX_MEMORY_GIB:g} GiB of memory, got {gpu.memory_gib:g}")


def _check(model: ModelSpec, gpu: GpuSpec, engine: str) -> None:
    _check_memory(gpu)
    advice = "give --num-gpu-blocks-override instead"
    if model.vocab_size < 1 or model.intermediate_size < 1:
        key = "intermediate_size" if model.intermediate_size < 1 else "vocab_size"
        raise EngineError(f"{model.name}: {key} is missing, so the weights cannot be counted; {advice}")
    if engine == "blis" and model.hidden_act.lower() not in _GATED_ACTIVATIONS:
        known = ", ".join(filter(None, _GATED_ACTIVATIONS))
        raise EngineError(
            f"{model.name}: hidden_act must be one of {known} to count weights, got {model.hidden_act!r}; {advice}"
        )
    if model.head_dim is None and model.hidden_size % model.num_heads:
        sizes = f"its {model.num_heads} heads do not divide hidden_size {model.hidden_size}"
        raise EngineError(f"{model.name} has no head_dim and {sizes}; {advice}")
