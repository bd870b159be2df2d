"""GPU memory that vLLM leaves for the KV cache: what it measures at its start, estimated from sizes."""

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.memory.planner import MemoryLayout
from blis_sim.engine.memory.shapes import (
    Attention,
    DenseMLP,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
)
from blis_sim.engine.memory.weights import DTYPE_BYTES

_GIB = 2**30
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
