"""Content of the KV cache for every layer, by kind: vLLM's specifications of one layer's cache."""

from collections.abc import Iterator, Mapping
from math import lcm
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.shapes import (
    Attention,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
    Sharding,
)
from blis_sim.engine.memory.weights import DTYPE_BYTES, local_groups

FULL, SLIDING, CHUNKED = "FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"
LATENT, STATE, MIXED = "MLAAttentionSpec", "MambaSpec", "UniformTypeKVCacheSpecs"
"""Kinds of caches, by the names of vLLM's classes."""

HOPPER, BLACKWELL = 9, 10
"""Major compute capabilities of GPUs."""

KV_DTYPE_BITS: Mapping[str, int] = {
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "fp8_ds_mla": 8, "bfloat16": 16, "float16": 16,
    "float32": 32,
}  # fmt: skip
"""Values of --kv-cache-dtype beside auto that are modelled, with the bits of one element."""
_INDEX_SCALE_BYTES = 4
_INDEX_GROUP = 128
_FP8_DS_MLA_BYTES = 656
_CHECKPOINT_TOKENS: Mapping[type, int] = {Mamba2: 1, GatedDeltaNet: 64, KimiDelta: 16}
"""Prefill kernels can keep the state at a block boundary inside of a step where the boundary is a multiple of this."""
_LATENT_HYBRID_TOKENS = 128
_FLASH_KDA_HEAD_SIZE = 128


class KVSpec(NamedTuple):
    """The cache of one layer: pages of `block_tokens` tokens, or one recurrent state per page.

    `token_bytes` is what attention holds of a token, `state_bytes` a recurrent state. `padded_page_bytes` is the size
    of a page that is padded to that of other layers, 0 without. `reach_tokens` is the width of the window or the chunk.
    `states` is how many recurrent states one request holds. Kernels keep a state inside of a chunk of a prefill where
    its distance from the start of the chunk is a multiple of `checkpoint_tokens`, 0 nowhere. `identity` distinguishes
    layers of the same size that vLLM keeps apart, such as another number of heads.
    """

    kind: str
    block_tokens: int
    token_bytes: int = 0
    state_bytes: int = 0
    padded_page_bytes: int = 0
    reach_tokens: int = 0
    states: int = 0
    checkpoint_tokens: int = 0
    identity: tuple[int, ...] = ()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.padded_page_bytes or self.state_bytes or self.token_bytes * self.block_tokens

    @property
    def is_whole_context(self) -> bool:
        """Whether the cache holds every token of a request."""
        return self.kind in (FULL, LATENT)


class CacheSettings(NamedTuple):
    """Settings of a deployment for the KV cache. `block_size` 0 leaves the size to the attention backend."""

    kv_cache_dtype: str = "auto"
    block_size: int = 0
    enable_prefix_caching: bool = True
    capability_major: int = HOPPER
    max_model_len: int = 0
    num_drafts: int = 0
    """Drafted tokens of a step: a state is kept for each, and convolutions keep as many inputs more."""

    @property
    def is_blackwell(self) -> bool:
        """Whether the GPU is a data-center Blackwell, which has kernels of its own."""
        return self.capability_major == BLACKWELL


def layer_specs(model: ModelShape, settings: CacheSettings, sharding: Sharding) -> list[list[KVSpec]]:
    """Return the caches of every layer, none for a layer that keeps nothing or reads another layer's cache."""
    element_bits = element_bits_of(model, settings.kv_cache_dtype)
    block = settings.block_size or _backend_block_tokens(model, settings)
    specs = [list(_specs(layer, model, settings, sharding, element_bits, block)) for layer in model.layers]
    if not any(spec.kind == STATE for layer in specs for spec in layer):
        return specs
    return _aligned(specs, model, settings, block)


def element_bits_of(model: ModelShape, kv_cache_dtype: str) -> int:
    """Return the bits of one element of the cache. Raises EngineError for a type that is not modelled."""
    if kv_cache_dtype == "auto":
        return 8 * DTYPE_BYTES[model.dtype]
    bits = KV_DTYPE_BITS.get(kv_cache_dtype)
    if bits is None:
        known = ", ".join(("auto", *KV_DTYPE_BITS))
        raise EngineError(f"--kv-cache-dtype must be one of {known}, got {kv_cache_dtype!r}")
    return bits


def _mixers(model: ModelShape) -> Iterator[Mixer]:
    return (layer.mixer for layer in model.layers if layer.mixer is not None)


def _backend_block_tokens(model: ModelShape, settings: CacheSettings) -> int:
    """Return the smallest block that the attention kernels of all layers take, by vLLM's choice of backends."""
    sizes = [16]
    for mixer in set(_mixers(model)):
        if isinstance(mixer, LatentAttention):
            sizes.append(_latent_block_tokens(mixer, settings))
        if isinstance(mixer, Attention) and mixer.caches_index:
            sizes.append(128)
    return lcm(*sizes)


def _latent_block_tokens(mixer: LatentAttention, settings: CacheSettings) -> int:
    """Return the block of MLA kernels: 64 for sparse ones, 128 for CUTLASS on Blackwell, 64 for FlashMLA with FP8."""
    if mixer.is_sparse:
        return 64
    if settings.is_blackwell:
        return 128
    return 64 if settings.kv_cache_dtype.startswith("fp8") else 16


def _specs(
    layer: Layer, model: ModelShape, settings: CacheSettings, sharding: Sharding, element_bits: int, block: int
) -> Iterator[KVSpec]:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        if not mixer.reuses_cache:
            yield _attention_spec(mixer, sharding, element_bits, block)
            if mixer.caches_index:
                # The index keys stay in the model's own precision.
                index_bytes = mixer.index_head_size * DTYPE_BYTES[model.dtype]
                yield KVSpec(kind=LATENT, block_tokens=block, token_bytes=index_bytes, identity=(1,))
    elif isinstance(mixer, LatentAttention):
        if mixer.has_indexer:
            scales = -(-mixer.index_head_size // _INDEX_GROUP) * _INDEX_SCALE_BYTES
            yield KVSpec(kind=LATENT, block_tokens=block, token_bytes=mixer.index_head_size + scales, identity=(1,))
        yield KVSpec(kind=LATENT, block_tokens=block, token_bytes=_latent_bytes(mixer, settings, element_bits))
    elif mixer is not None:
        yield KVSpec(
            kind=STATE, block_tokens=block, state_bytes=_state_bytes(mixer, model.dtype, sharding, settings.num_drafts)
        )


def _attention_spec(attention: Attention, sharding: Sharding, element_bits: int, block: int) -> KVSpec:
    sharding.part(attention.heads, "attention heads")
    heads = sharding.kv_heads(attention.kv_heads)
    token_bytes = heads * (attention.head_size + attention.value_head_size) * element_bits // 8
    kind = SLIDING if attention.window_tokens else CHUNKED if attention.chunk_tokens else FULL
    return KVSpec(
        kind=kind,
        block_tokens=block,
        token_bytes=token_bytes,
        reach_tokens=attention.window_tokens or attention.chunk_tokens,
        identity=(heads, attention.head_size, attention.value_head_size),
    )


def _latent_bytes(mixer: LatentAttention, settings: CacheSettings, element_bits: int) -> int:
    """Return the bytes of one token's latent. Sparse kernels on Hopper keep FP8 with scales and 16-bit positions."""
    if mixer.is_sparse and settings.kv_cache_dtype.startswith("fp8") and not settings.is_blackwell:
        return _FP8_DS_MLA_BYTES
    return mixer.latent_size * element_bits // 8


def _state_bytes(mixer: Mixer, dtype: str, sharding: Sharding, num_drafts: int) -> int:
    """Return the bytes of one recurrent state: the tail of the convolution, and the matrix of every head."""
    width = DTYPE_BYTES[dtype]
    if isinstance(mixer, Mamba2):
        groups = local_groups(mixer, sharding) * sharding.tp
        channels = (mixer.inner_size + 2 * groups * mixer.state_size) // sharding.tp
        heads = sharding.part(mixer.heads, "Mamba heads")
        matrix = heads * mixer.head_size * mixer.state_size * DTYPE_BYTES.get(mixer.state_dtype, width)
        return channels * (mixer.conv_kernel - 1 + num_drafts) * width + matrix
    if isinstance(mixer, GatedDeltaNet):
        channels = 2 * mixer.key_heads * mixer.key_head_size + mixer.value_heads * mixer.value_head_size
        heads = sharding.part(mixer.value_heads, "linear value heads")
        matrix = heads * mixer.value_head_size * mixer.key_head_size * DTYPE_BYTES.get(mixer.state_dtype, width)
        return channels // sharding.tp * (mixer.conv_kernel - 1 + num_drafts) * width + matrix
    assert isinstance(mixer, KimiDelta)
    heads = sharding.part(mixer.heads, "linear heads")
    inner = heads * mixer.head_size
    return 3 * inner * (mixer.conv_kernel - 1 + num_drafts) * width + inner * mixer.head_size * 4


def _aligned(specs: list[list[KVSpec]], model: ModelShape, settings: CacheSettings, block: int) -> list[list[KVSpec]]:
    """Return the caches of a hybrid: blocks of attention grow until a page holds a state, states are padded to it.

    With prefix caching a state is kept once per block; without, one state serves a request of any length.
    """
    attention_bytes = max((spec.token_bytes for layer in specs for spec in layer if spec.kind != STATE), default=0)
    state_bytes = max(spec.state_bytes for layer in specs for spec in layer)
    if not attention_bytes:
        return specs
    multiple = block
    if any(isinstance(mixer, LatentAttention) for mixer in _mixers(model)):
        multiple = max(multiple, _LATENT_HYBRID_TOKENS)
    checkpoint_tokens = _checkpoint_tokens(model, settings)
    multiple = lcm(multiple, checkpoint_tokens or 1)
    tokens = max(block, multiple * -(-state_bytes // (multiple * attention_bytes)))
    is_kept = settings.enable_prefix_caching
    planned = next(spec for layer in specs for spec in layer if spec.kind == STATE)
    state = planned._replace(
        block_tokens=tokens if is_kept else settings.max_model_len,
        padded_page_bytes=tokens * attention_bytes,
        states=settings.num_drafts + ((3 if checkpoint_tokens else 2) if is_kept else 1),
        # FlashInfer's gated delta-net keeps states on the grid of whole blocks alone.
        checkpoint_tokens=tokens
        if any(isinstance(m, GatedDeltaNet) for m in _mixers(model)) and checkpoint_tokens
        else checkpoint_tokens,
    )
    return [[state if spec.kind == STATE else spec._replace(block_tokens=tokens) for spec in layer] for layer in specs]


def _checkpoint_tokens(model: ModelShape, settings: CacheSettings) -> int:
    """Return the tokens that checkpoints inside of a prefill are multiples of, 0 where a kernel has none.

    The kernels of linear attention that export states need a Hopper or newer.
    """
    mixers = [mixer for mixer in set(_mixers(model)) if type(mixer) in _CHECKPOINT_TOKENS]
    kinds = {type(mixer) for mixer in mixers}
    if not settings.enable_prefix_caching or (kinds != {Mamba2} and settings.capability_major < HOPPER):
        return 0
    if any(isinstance(mixer, KimiDelta) and not _is_flash_kda(mixer, model.dtype) for mixer in mixers):
        return 0
    return lcm(*(_CHECKPOINT_TOKENS[kind] for kind in kinds))


def _is_flash_kda(mixer: KimiDelta, dtype: str) -> bool:
    """Return whether vLLM takes FlashKDA for a layer, the kernel of Kimi delta attention that exports states."""
    return mixer.has_bounded_gate and mixer.head_size == _FLASH_KDA_HEAD_SIZE and dtype == "bfloat16"
