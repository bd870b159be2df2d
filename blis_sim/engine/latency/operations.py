"""The operations of one step on one GPU, by kind and size: what has to be looked up to time it."""

from typing import NamedTuple

AUTO, MARLIN = "auto", "marlin"
MOE_BACKENDS = (
    AUTO, MARLIN, "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "b12x",
    "batched_triton", "cutlass", "deep_gemm", "deep_gemm_mega_moe", "emulation", "flashinfer_b12x",
    "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm",
    "flashinfer_trtllm", "flydsl", "hpc", "humming", "rdna3", "triton", "triton_unfused",
)  # fmt: skip
"""The kernels of experts that --moe-backend of vLLM accepts."""
MXFP4_BY_MARLIN = "mxfp4 by marlin"
"""The weights of experts in MXFP4 whose kernels are Marlin's."""
_BITS = {
    "fp8": 8, "block fp8": 8, "mxfp8": 8, "int8": 8, "nvfp4": 4, "mxfp4": 4, MXFP4_BY_MARLIN: 4, "int4": 4, "nf4": 4,
}  # fmt: skip


def bits_of(values: str) -> int:
    """Return the bits of a value in a format; 16 in those that are not known."""
    return _BITS.get(values, 16)


class Matmul(NamedTuple):
    """Tokens times a matrix of `rows` outputs and `columns` inputs, whose weights are stored as `weights`."""

    rows: int
    columns: int
    weights: str


class Experts(NamedTuple):
    """Routed experts of width `inner_size`, `chosen` of `experts` per token, over `tp` times `ep` GPUs."""

    hidden_size: int
    inner_size: int
    experts: int
    chosen: int
    tp: int
    ep: int
    weights: str
    has_gate: bool = True
    is_tuned: bool = True
    """Whether the release has a configuration of the kernel for this shape, as those that were measured have."""


class SharedExpert(NamedTuple):
    """One of the two multiplications of the expert that every token passes through, beside the routed ones."""

    matmul: Matmul


class AllReduce(NamedTuple):
    """The sum of `width` values per token over `gpus` GPUs."""

    width: int
    gpus: int


class Elementwise(NamedTuple):
    """A small kernel, such as a norm, that reads and writes `bytes_per_token`."""

    bytes_per_token: int


class Routing(NamedTuple):
    """The choice among `experts` stored as `weights`, for every token."""

    experts: int
    weights: str


class HeadAttention(NamedTuple):
    """Attention that caches keys and values of `kv_heads` heads; `window_tokens` 0 means that it sees everything."""

    heads: int
    kv_heads: int
    head_size: int
    window_tokens: int
    kv_dtype: str
    has_norm: bool = False
    has_sinks: bool = False
    """Whether each head has a learned logit that takes attention without a token."""


class LatentAttention(NamedTuple):
    """Multi-head latent attention of `heads` of a model's `all_heads`, with the projections around it."""

    heads: int
    all_heads: int
    kv_dtype: str
    weights: str
    projections: tuple[Matmul, ...]


class SparseLatentAttention(NamedTuple):
    """Latent attention to tokens that an indexer of the layer chooses, as a model of `architecture` has it."""

    architecture: str
    heads: int
    kv_dtype: str
    projections: tuple[Matmul, ...]


class DeltaNet(NamedTuple):
    """A gated delta net, with its convolution, without its projections: it keeps a state instead of a KV cache."""

    hidden_size: int
    key_heads: int
    key_head_size: int
    value_heads: int
    value_head_size: int
    conv_kernel: int


class AcrossRanks(NamedTuple):
    """An operation on the tokens of all data-parallel ranks, each of which has as many."""

    operation: Experts | AllReduce
    ranks: int


TokenOperation = AcrossRanks | Matmul | Experts | SharedExpert | AllReduce | Elementwise | Routing
"""An operation whose time depends on the number of tokens in a step alone."""
AttentionOperation = HeadAttention | LatentAttention | SparseLatentAttention | DeltaNet
TOKENS_CHOSEN = 2048
"""Tokens that an indexer of sparse attention chooses; tables have no other number."""
LATENT_BYTES = {"fp8": 656, "bfloat16": 1152}
"""Bytes of a token in a cache of latent attention: 576 values, in FP8 with scales."""
INDEX_KEY_BYTES = 132
"""Bytes of a token's key for an indexer: 128 values in FP8, with a scale."""


def latent_token_bytes(attention: LatentAttention | SparseLatentAttention) -> int:
    """Return the bytes that one layer caches for a token."""
    is_sparse = isinstance(attention, SparseLatentAttention)
    return LATENT_BYTES[attention.kv_dtype] + (INDEX_KEY_BYTES if is_sparse else 0)


class StepOperations(NamedTuple):
    """All operations of a step, each with the number of layers that have it.

    `head` computes the logits of the requests that sample and `sampler` chooses from them, `per_token` are those of
    every token.
    """

    per_token: tuple[tuple[TokenOperation, int], ...]
    attention: tuple[tuple[AttentionOperation, int], ...]
    head: Matmul
    sampler: Elementwise
    num_layers: int
