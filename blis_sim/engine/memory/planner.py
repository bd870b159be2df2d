"""The memory plan of one instance: weights by stage, memory left for the KV cache, its groups and its blocks."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import context_window
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.kv_groups import (
    BLACKWELL,
    HOPPER,
    STATE,
    CacheSettings,
    KVGroup,
    RequestLimits,
    block_bytes,
    element_bits_of,
    group_layers,
    hit_granularity,
    layer_specs,
    longest_request,
    with_whole_chunks,
)
from blis_sim.engine.memory.weights import (
    DTYPE_BYTES,
    Attention,
    DenseMLP,
    FeedForward,
    FormatOf,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
    Sharding,
    ShardingError,
    bytes_per_weight,
    check_block_shards,
    read_quantization,
    stage_layers,
    weight_bytes,
)
from blis_sim.engine.specs import Checkpoint, GpuSpec, ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.memory.drafters import Drafter, DrafterRequest


_GIB = 2**30
_SPARSE_FP8_ON_BLACKWELL = ("GlmMoeDsaForCausalLM",)
"""Architectures for which vLLM keeps the KV cache in FP8 on Blackwell by default."""


class PlanRequest(NamedTuple):
    """A model and how it is deployed. `capability_major` 0 takes the GPU that the checkpoint needs."""

    config: Mapping[str, Any]
    model: str
    hf_quant_config: Mapping[str, Any] | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str = ""
    block_size: int = 0
    max_model_len: int = 0
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = True
    capability_major: int = 0
    drafter: "DrafterRequest | None" = None
    refines_fp8_blocks: bool = True
    """Whether the release takes smaller blocks where the checkpoint's do not divide over GPUs."""
    shape: ModelShape | None = None
    """The shape of the model where it has been read already."""


class MemoryLayout(NamedTuple):
    """The part of a plan that does not depend on how much memory there is."""

    shape: ModelShape
    weight_bytes_per_gpu: tuple[int, ...]
    groups: tuple[KVGroup, ...]
    stages: tuple[range, ...]
    limits: RequestLimits
    granularity: tuple[int, int]
    quantization: str
    bytes_per_weight: float
    kv_cache_dtype: str
    bytes_per_kv_element: float
    capability_major: int
    tp: int

    @property
    def block_bytes_per_gpu(self) -> tuple[int, ...]:
        """Bytes of one block on a GPU of every stage."""
        return tuple(block_bytes(self.groups, stage) if self.groups else 0 for stage in self.stages)

    @property
    def block_tokens(self) -> int:
        """Tokens of one block of the groups that hold tokens; of states where there are no others."""
        sizes = [group.block_tokens for group in self.groups if group.kind != STATE]
        return max(sizes, default=self.granularity[0])

    def num_blocks(self, kv_bytes_per_gpu: int) -> int:
        """Return the blocks that fit into that many bytes of every GPU: the fewest of all stages."""
        sizes = [size for size in self.block_bytes_per_gpu if size]
        return kv_bytes_per_gpu // max(sizes) if sizes else 1

    def groups_of_stage(self, stage: range) -> list[KVGroup]:
        """Return the groups with the layers of one pipeline stage alone."""
        return [group.restricted_to(stage) for group in self.groups]

    def blocks_per_request(self, tokens: int | None = None) -> int:
        """Return the most blocks that one request of `tokens` holds, without them one of the longest length."""
        limits = self.limits if tokens is None else self.limits._replace(max_model_len=tokens)
        return sum(group.blocks_per_request(limits) for group in self.groups)

    def longest_request_tokens(self, num_blocks: int) -> int:
        """Return the length of the longest request that fits into the blocks but one, which vLLM never gives away."""
        most = num_blocks * max(group.block_tokens for group in self.groups)
        return longest_request(num_blocks, most, self.blocks_per_request)

    def capacity_tokens(self, num_blocks: int) -> int:
        """Return how many tokens of requests of the longest length fit into the blocks."""
        per_request = self.blocks_per_request()
        return int(num_blocks / per_request * self.limits.max_model_len) if per_request else 0


def plan_layout(request: PlanRequest) -> MemoryLayout:
    """Return the weights and the groups of a deployment.

    Raises EngineError, in one line, for what is not modelled or does not fit together.
    """
    shape = request.shape or read_model(request.config, request.model, request.dtype)
    quantization = read_quantization(request.config, request.hf_quant_config, request.model, request.quantization)
    capability = request.capability_major or (BLACKWELL if quantization.has_nvfp4 else HOPPER)
    kv_cache_dtype = _kv_cache_dtype(request.kv_cache_dtype, quantization.kv_cache_dtype, shape, capability)
    sharding = Sharding(
        model=request.model,
        tp=request.tp,
        pp=request.pp,
        dp=request.dp,
        expert_parallel=request.expert_parallel,
    )
    check_block_shards(shape, quantization.method, quantization.format_of, sharding, refines=request.refines_fp8_blocks)
    max_model_len = request.max_model_len or context_window(request.config, request.model)
    settings = CacheSettings(
        kv_cache_dtype=kv_cache_dtype,
        block_size=request.block_size,
        enable_prefix_caching=request.enable_prefix_caching,
        capability_major=capability,
        max_model_len=max_model_len,
        num_drafts=request.drafter.num_tokens if request.drafter else 0,
    )
    drafter = _drafter(request, shape, quantization.format_of, sharding)
    drafts = drafter.shape.layers if drafter else ()
    together = shape._replace(layers=(*shape.layers, *drafts))
    specs = layer_specs(together, settings, sharding)
    if _reads_hidden_states(request):
        specs = with_whole_chunks(specs)
    groups = tuple(group_layers(specs, request.model))
    # vLLM schedules one batch ahead of the stages, so one batch more than there are stages is in flight.
    in_flight = (request.pp + 1) * request.max_num_batched_tokens
    return MemoryLayout(
        shape=shape,
        weight_bytes_per_gpu=_weight_bytes(shape, quantization.format_of, sharding, drafter),
        groups=groups,
        stages=_stages(shape, len(drafts), request),
        limits=RequestLimits(max_model_len, in_flight),
        granularity=hit_granularity(groups, request.enable_prefix_caching) if groups else (16, 16),
        quantization=quantization.method,
        bytes_per_weight=bytes_per_weight(shape, quantization.format_of),
        kv_cache_dtype=kv_cache_dtype,
        bytes_per_kv_element=element_bits_of(shape, kv_cache_dtype) / 8,
        capability_major=capability,
        tp=request.tp,
    )


def _reads_hidden_states(request: PlanRequest) -> bool:
    if request.drafter is None:
        return False
    from blis_sim.engine.speculation import DRAFTERS

    return DRAFTERS[request.drafter.method].reads_hidden_states


def _drafter(request: PlanRequest, shape: ModelShape, format_of: FormatOf, sharding: Sharding) -> "Drafter | None":
    if request.drafter is None:
        return None
    from blis_sim.engine.memory.drafters import read_drafter  # few deployments draft
    from blis_sim.engine.speculation import DRAFTERS

    if not DRAFTERS[request.drafter.method].has_model:
        return None
    return read_drafter(request.drafter, shape, request.config, format_of, sharding)


def _weight_bytes(
    shape: ModelShape, format_of: FormatOf, sharding: Sharding, drafter: "Drafter | None"
) -> tuple[int, ...]:
    """Return the bytes of one GPU's parameters by stage, those of a drafter with the last."""
    *others, last = weight_bytes(shape, format_of, sharding)
    return (*others, last + (drafter.weight_bytes(sharding) if drafter else 0))


def _stages(shape: ModelShape, num_drafter_layers: int, request: PlanRequest) -> tuple[range, ...]:
    """Return the numbers of each stage's layers; those of a drafter follow the model's own on the last stage."""
    *others, last = stage_layers(len(shape.layers), request.pp, request.model)
    return (*others, range(last.start, last.stop + num_drafter_layers))


def _kv_cache_dtype(requested: str, declared: str, shape: ModelShape, capability: int) -> str:
    """Return the type of the KV cache: what was requested, else the checkpoint's, else vLLM's choice for the GPU."""
    if requested != "auto":
        return requested
    if declared == "auto" and capability == BLACKWELL and shape.architecture in _SPARSE_FP8_ON_BLACKWELL:
        return "fp8_e4m3"
    return declared


def check_fits(layout: MemoryLayout, kv_bytes_per_gpu: int) -> None:
    """Raise EngineError when one request of the longest length does not fit into the KV cache, as vLLM does."""
    block = max(layout.block_bytes_per_gpu)
    # One block stands for no block at all and is never given to a request.
    needed = (layout.blocks_per_request() + 1) * block
    if needed > kv_bytes_per_gpu:
        raise EngineError(
            f"{layout.shape.model} needs {needed / _GIB:.2f} GiB of KV cache per GPU for one request of "
            f"{layout.limits.max_model_len} tokens, got {max(kv_bytes_per_gpu, 0) / _GIB:.2f} GiB. "
            "Give more memory or GPUs, or a smaller --max-model-len"
        )


_WORKSPACES_BYTES = int(0.3 * _GIB)
"""Workspaces of matrix libraries and captured CUDA graphs."""
_COMMUNICATION_BYTES = int(0.7 * _GIB)
"""Buffers of NCCL and of the all-reduce kernels, with more than one GPU."""
_SAMPLER_BYTES = 2 + 2 + 4 + 4
"""Bytes per request and token of the vocabulary: logits of a GPU and of all, in 32 bits, and their probabilities."""
_LIVE_STREAMS = 2
"""Copies of the residual stream beside the widest layer: the stream itself and its normalised copy."""


def available_kv_bytes(
    layout: MemoryLayout,
    gpu: GpuSpec,
    *,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> int:
    """Return the bytes of one GPU that are left for the KV cache; below 1 when there is no room.

    vLLM takes its fraction of the memory that CUDA reports. It subtracts the weights, the peak of a step with
    `max_num_batched_tokens` and its workspaces.
    """
    total = int((gpu.cuda_memory_gib or gpu.memory_gib) * _GIB * gpu_memory_utilization)
    weights = max(layout.weight_bytes_per_gpu)
    taken = weights + activation_bytes(layout, max_num_batched_tokens, max_num_seqs) + _WORKSPACES_BYTES
    if layout.tp * len(layout.stages) > 1:
        taken += _COMMUNICATION_BYTES
    return total - taken


def activation_bytes(layout: MemoryLayout, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Return the peak of a step's activations on one GPU: that of the widest layer, or of sampling."""
    shape = layout.shape
    width = DTYPE_BYTES[shape.dtype]
    stream = max_num_batched_tokens * width * shape.hidden_size
    widest = max((_layer_elements(layer, shape.hidden_size, layout.tp) for layer in shape.layers), default=0)
    layers = _LIVE_STREAMS * stream + max_num_batched_tokens * width * widest
    return max(layers, stream + max_num_seqs * shape.vocab_size * _SAMPLER_BYTES)


def _layer_elements(layer: Layer, hidden: int, tp: int) -> int:
    """Return the elements per token of the widest operation of a layer, its input and its output together."""
    mixer = 0 if layer.mixer is None else _mixer_elements(layer.mixer, tp)
    return max([mixer, *(_feed_forward_elements(part, hidden, tp) for part in layer.feed_forward)])


def _mixer_elements(mixer: Mixer, tp: int) -> int:
    if isinstance(mixer, Attention):
        return (2 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_size // tp
    if isinstance(mixer, LatentAttention):
        return mixer.heads * (2 * mixer.nope_head_size + mixer.rope_head_size + 2 * mixer.value_head_size) // tp
    if isinstance(mixer, Mamba2):
        return 3 * mixer.inner_size // tp
    if isinstance(mixer, GatedDeltaNet):
        return 4 * mixer.value_heads * mixer.value_head_size // tp
    return 4 * mixer.heads * mixer.head_size // tp


def _feed_forward_elements(part: FeedForward, hidden: int, tp: int) -> int:
    """Return the elements of an MLP between its matrices; kernels for experts keep two workspaces per chosen expert."""
    size = part.intermediate_size // tp
    up = size * (2 if part.has_gate else 1)
    if isinstance(part, DenseMLP):
        return up + size
    inputs = part.latent_size or hidden
    return part.experts_per_token * (max(size, inputs) + max(up, inputs))


# The number of KV blocks that fit beside the weights, which vLLM measures by profiling, estimated from sizes.
#
# `planned_memory` plans a checkpoint as vLLM does. `kv_blocks` counts BLIS's way, from the sizes of a model alone,
# which also serves checkpoints that cannot be planned.

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
_KEPT_LAYOUTS = 128
_KEPT_SHAPES = 16


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
    refines_fp8_blocks: bool = True


def planned_layout(model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, settings: MemorySettings) -> MemoryLayout:
    """Return weights and KV cache groups as vLLM plans them. Raises EngineError for what cannot be planned."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to plan its memory from")
    longest = settings.max_model_len or model.max_model_len
    settings = settings._replace(max_model_len=longest)
    plan = _layout if settings.drafter is None else _layout.__wrapped__
    return plan(model.checkpoint, model.name, int(gpu.compute_capability), tp, dp, settings)


@lru_cache(maxsize=_KEPT_SHAPES)
def _shape(checkpoint: Checkpoint, model: str, dtype: str) -> ModelShape:
    """Return the shape of a model, which all placements share, those that are impossible included."""
    return read_model(checkpoint.config, model, dtype)


@lru_cache(maxsize=_KEPT_LAYOUTS)
def _layout(
    checkpoint: Checkpoint, model: str, capability_major: int, tp: int, dp: int, settings: MemorySettings
) -> MemoryLayout:
    shared = {name: getattr(settings, name) for name in PlanRequest._fields if name in MemorySettings._fields}
    config, quantized = checkpoint.config, checkpoint.hf_quant_config
    shape = _shape(checkpoint, model, settings.dtype)
    return plan_layout(
        PlanRequest(config, model, quantized, tp, dp=dp, capability_major=capability_major, shape=shape, **shared)
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
    blocks = layout.num_blocks(kv_cache_bytes(layout, gpu, settings))
    if blocks < 1 and (given := settings.kv_cache_memory_bytes) is not None:
        raise EngineError(
            f"--kv-cache-memory-bytes must be at least a block, {max(layout.block_bytes_per_gpu)}, got {given}"
        )
    if blocks < 1:
        raise EngineError(_no_planned_room(layout, model, gpu, dp, settings))
    return blocks * dp if model.is_moe else blocks


def kv_cache_bytes(layout: MemoryLayout, gpu: GpuSpec, settings: MemorySettings) -> int:
    """Return the bytes of every GPU for the KV cache; below 1 when there is no room. Raises EngineError when the memory
    of the GPU is not known.
    """
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    _check_memory(gpu)
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
        return wider.num_blocks(kv_cache_bytes(wider, gpu, settings)) > 0

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
    that one GPU holds of a block. BLIS divides the memory that is free on all of them by those bytes.

    Raises EngineError when the model's sizes do not allow an estimate, or when the weights leave no room. The text then
    names the smallest tp that does.
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


def estimated_weight_bytes(model: ModelSpec) -> int:
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
    return available - (estimated_weight_bytes(model) / _GIB + activation + other)


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
