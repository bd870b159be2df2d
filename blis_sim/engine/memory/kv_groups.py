"""Content of the KV cache for every layer, and groups of layers that share a block table, as vLLM plans them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.weights import (
    DTYPE_BYTES,
    Attention,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
    Sharding,
    local_groups,
)

# Content of the KV cache for every layer, by kind: vLLM's specifications of one layer's cache.

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
    `states` is how many recurrent states one request holds. Kernels keep a state inside of a prefill chunk where its
    distance from the start is a multiple of `checkpoint_tokens`, 0 nowhere. `identity` distinguishes layers of the same
    size that vLLM keeps apart, such as another number of heads.
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


def with_whole_chunks(specs: list[list[KVSpec]]) -> list[list[KVSpec]]:
    """Return the caches of a model with chunks of local attention as vLLM keeps them without its hybrid manager. Every
    layer keeps the whole context, if any does. Facts: `_promote_local_kv_cache_specs`."""
    kinds = {spec.kind for layer in specs for spec in layer}
    if not kinds >= {CHUNKED, FULL}:
        return specs
    return [
        [spec._replace(kind=FULL) if spec.kind in (CHUNKED, SLIDING) else spec for spec in layer] for layer in specs
    ]


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


# Groups of layers that share a block table, as vLLM plans them, and the needs of a running KV cache for each.

_MAX_LAYER_RATIO = 1.5
"""From this ratio of layers between kinds on, groups are as small as the rarest kind. Below it they are as large as the
commonest, which wastes fewer pages on padding."""


class KVGroup(NamedTuple):
    """Layers of one block table. `layers` are their numbers; `specs` has one entry for each, equal in most groups."""

    kind: str
    specs: tuple[KVSpec, ...]
    layers: tuple[int, ...]

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.specs[0].block_tokens

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: of one layer where all are equal, of all together where they differ."""
        return sum(spec.page_bytes for spec in self.specs) if self.kind == MIXED else self.specs[0].page_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers of the group."""
        return sum(spec.page_bytes for spec in self.specs)

    def restricted_to(self, layers: range) -> "KVGroup":
        """Return the group with those of its layers that are among `layers`."""
        kept = [(spec, number) for spec, number in zip(self.specs, self.layers, strict=True) if number in layers]
        return KVGroup(self.kind, tuple(spec for spec, _ in kept), tuple(number for _, number in kept))

    def blocks_per_request(self, request: "RequestLimits") -> int:
        """Return the most blocks that one request holds in this group."""
        return max(
            blocks_of(spec.kind, spec.block_tokens, spec.reach_tokens, spec.states, request) for spec in self.specs
        )


class RequestLimits(NamedTuple):
    """The longest request, and how many tokens may be scheduled but not settled at any instant."""

    max_model_len: int
    in_flight_tokens: int


def blocks_of(kind: str, block_tokens: int, reach_tokens: int, states: int, request: RequestLimits) -> int:
    """Return the most blocks that one request holds in a group of such layers."""
    if kind == STATE:
        return states
    if kind == SLIDING:
        held = min(reach_tokens - 1 + request.in_flight_tokens, request.max_model_len)
        return -(-held // block_tokens) + 1
    if kind == CHUNKED:
        held = min(reach_tokens + request.in_flight_tokens, request.max_model_len)
        return -(-held // block_tokens)
    return -(-request.max_model_len // block_tokens)


def longest_request(num_blocks: int, most_tokens: int, blocks_needed: Callable[[int], int]) -> int:
    """Return the tokens, up to `most_tokens`, of the longest request that fits into all blocks but one.

    `blocks_needed` maps the tokens of a request to the blocks that it holds. vLLM keeps one block for itself.
    """
    shortest, longest = 0, most_tokens
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if blocks_needed(middle) < num_blocks:
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def group_layers(specs: Sequence[Sequence[KVSpec]], model: str) -> list[KVGroup]:
    """Return the groups of a model from the caches of its layers.

    One group holds all layers when all are of one kind. Else pages are made equally large and every kind is divided
    into groups of equally many layers.
    """
    entries = [(number, spec) for number, layer in enumerate(specs) for spec in layer]
    if not entries:
        return []
    numbers = tuple(number for number, _ in entries)
    flat = tuple(spec for _, spec in entries)
    if len({_without_reach(spec) for spec in {*flat}}) == 1 and _is_one_type(flat):
        return [KVGroup(flat[0].kind, flat, numbers)]
    if _is_one_type(flat):
        return [KVGroup(MIXED, flat, numbers)]
    unified = _equal_pages(flat, model)
    return _even_groups(list(zip(numbers, unified, strict=True)))


def _without_reach(spec: KVSpec) -> KVSpec:
    return spec._replace(reach_tokens=0)


def _is_one_type(specs: Sequence[KVSpec]) -> bool:
    """Return whether all layers need the same slots for a request."""
    if len({spec.block_tokens for spec in specs}) > 1:
        return False
    if all(spec.is_whole_context for spec in specs):
        return True
    if len({spec.kind for spec in specs}) > 1:
        return False
    if specs[0].kind == STATE:
        return len({spec.page_bytes for spec in specs}) == 1
    return len({spec.reach_tokens for spec in specs}) == 1


def _equal_pages(specs: Iterable[KVSpec], model: str) -> list[KVSpec]:
    """Return caches with pages of one size: smaller ones get longer blocks where those fit evenly, else padding."""
    specs = list(specs)
    largest = max(spec.page_bytes for spec in specs)
    return [_with_page(spec, largest, model) for spec in specs]


def _with_page(spec: KVSpec, page: int, model: str) -> KVSpec:
    if spec.page_bytes == page:
        return spec
    if spec.kind != STATE and page % spec.page_bytes == 0:
        return spec._replace(block_tokens=spec.block_tokens * (page // spec.page_bytes))
    if spec.kind == LATENT:
        raise EngineError(
            f"{model}: a page of latent attention has {spec.page_bytes} bytes, which do not divide the {page} bytes "
            "of the largest page, and vLLM cannot pad it"
        )
    return spec._replace(padded_page_bytes=page)


def _even_groups(entries: Sequence[tuple[int, KVSpec]]) -> list[KVGroup]:
    buckets: dict[KVSpec, list[tuple[int, KVSpec]]] = {}
    for number, spec in entries:
        # Full attention layers of one size are one kind whatever else they are.
        key = _without_reach(spec) if spec.kind == FULL else spec
        buckets.setdefault(key, []).append((number, spec))
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < min(counts) * _MAX_LAYER_RATIO else min(counts)
    groups = []
    for bucket in buckets.values():
        num_groups = -(-len(bucket) // size)
        for first in range(num_groups):
            part = bucket[first::num_groups]
            groups.append(
                KVGroup(part[0][1].kind, tuple(spec for _, spec in part), tuple(number for number, _ in part))
            )
    return groups


def block_bytes(groups: Sequence[KVGroup], layers: range) -> int:
    """Return the bytes that one block takes on a GPU with `layers`: those of the largest group there."""
    return max(group.restricted_to(layers).block_bytes for group in groups)


def hit_granularity(groups: Sequence[KVGroup], enable_prefix_caching: bool) -> tuple[int, int]:
    """Return the tokens to which prefix hits are cut, and those of one hash.

    Hits of several groups end where blocks of all of them end. Hashes are as fine as the blocks divide evenly, but
    recurrent states are only kept at the ends of their blocks.
    """
    sizes = [group.block_tokens for group in groups]
    scheduled = lcm(*sizes)
    if len(sizes) == 1 or not enable_prefix_caching:
        return scheduled, scheduled
    return scheduled, gcd(*sizes)


_WHOLE_CONTEXT = (FULL, LATENT, MIXED)


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """One block table of every request. `kind` is the name of vLLM's specification.

    `reach_tokens` is the width of a sliding window or of a chunk. A state is kept inside of a prefill chunk where its
    distance from the start is a multiple of `checkpoint_tokens`. With 0 it is kept at the ends of chunks alone. A
    request holds up to `states` of them. `layers` distinguishes groups of equal size whose layers differ.
    """

    kind: str
    block_tokens: int
    reach_tokens: int = 0
    checkpoint_tokens: int = 0
    states: int = 1
    layers: tuple[int, ...] = ()

    @property
    def is_whole_context(self) -> bool:
        """Whether blocks are kept for every token of a request."""
        return self.kind in _WHOLE_CONTEXT

    def window_blocks(self, num_tokens: int) -> int:
        """Return how many blocks before the end of its first `num_tokens` tokens a request needs; 0 where it needs
        all."""
        size, reach = self.block_tokens, self.reach_tokens
        if self.kind == SLIDING:
            return max(-(-reach // size), -(-(reach - 1 - num_tokens % -size) // size))
        if self.kind == CHUNKED:
            return -(-reach // size)
        return int(self.kind == STATE)


def group_specs(groups: Sequence[KVGroup]) -> tuple[KVCacheGroupSpec, ...]:
    """Return what a running cache needs of planned groups."""
    return tuple(
        KVCacheGroupSpec(
            group.kind,
            group.block_tokens,
            group.specs[0].reach_tokens if group.kind not in _WHOLE_CONTEXT else 0,
            group.specs[0].checkpoint_tokens,
            group.specs[0].states,
            group.specs[0].identity,
        )
        for group in groups
    )


def is_single_context(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether all layers keep every token in one block table, or nothing is said of groups."""
    return not groups or (len(groups) == 1 and groups[0].is_whole_context)


def hash_block_tokens(groups: Sequence[KVCacheGroupSpec], enable_prefix_caching: bool) -> int:
    """Return the tokens of one identity of a prompt's content; without prefix caching those of attention's block."""
    sizes = [group.block_tokens for group in groups]
    if enable_prefix_caching:
        return gcd(*sizes)
    return min((group.block_tokens for group in groups if group.kind != STATE), default=min(sizes))


def most_blocks(groups: Sequence[KVCacheGroupSpec], num_tokens: int, in_flight_tokens: int) -> int:
    """Return the most blocks that a request of up to `num_tokens` tokens ever holds."""
    limits = RequestLimits(num_tokens, in_flight_tokens)
    return sum(blocks_of(group.kind, group.block_tokens, group.reach_tokens, group.states, limits) for group in groups)


def capacity_tokens(groups: Sequence[KVCacheGroupSpec], num_blocks: int, in_flight_tokens: int) -> int:
    """Return the tokens of the longest request that fits into all blocks but one."""
    most = num_blocks * max(group.block_tokens for group in groups)
    return longest_request(num_blocks, most, lambda tokens: most_blocks(groups, tokens, in_flight_tokens))


def blocks_after(groups: Sequence[KVCacheGroupSpec], num_tokens: int) -> int:
    """Return the blocks that a request holds once `num_tokens` tokens are computed, without one for the next token."""
    return sum(_blocks_after(group, num_tokens) for group in groups)


def _blocks_after(group: KVCacheGroupSpec, num_tokens: int) -> int:
    if group.kind == STATE:
        return 1
    first = 0
    if group.kind == SLIDING:
        first = max(0, num_tokens - group.reach_tokens + 1)
    if group.kind == CHUNKED:
        first = num_tokens // group.reach_tokens * group.reach_tokens
    return -(-num_tokens // group.block_tokens) - first // group.block_tokens


def scheduler_block_tokens(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the tokens of which hits are multiples: where blocks of all groups end."""
    return lcm(*(group.block_tokens for group in groups))
