"""The memory plan of one instance: weights by stage, memory left for the KV cache, its groups and its blocks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import context_window
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.kv_groups import (
    KVGroup,
    RequestLimits,
    block_bytes,
    group_layers,
    hit_granularity,
    longest_request,
)
from blis_sim.engine.memory.kv_specs import BLACKWELL, HOPPER, STATE, CacheSettings, element_bits_of, layer_specs
from blis_sim.engine.memory.modules import FormatOf
from blis_sim.engine.memory.quantization import read_quantization
from blis_sim.engine.memory.shapes import (
    Attention,
    DenseMLP,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
    Sharding,
    stage_layers,
)
from blis_sim.engine.memory.weights import DTYPE_BYTES, bytes_per_weight, weight_bytes
from blis_sim.engine.specs import GpuSpec

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
    shape = read_model(request.config, request.model, request.dtype)
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
    groups = tuple(group_layers(layer_specs(together, settings, sharding), request.model))
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
            f"{layout.limits.max_model_len} tokens, got {max(kv_bytes_per_gpu, 0) / _GIB:.2f} GiB; "
            "give more memory or GPUs, or a smaller --max-model-len"
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

    vLLM takes its fraction of what CUDA reports as the memory of the GPU, and subtracts the weights, the peak of a step
    with `max_num_batched_tokens` and its workspaces.
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
