"""Readers of decoders whose layers are attention, full, limited to a window or latent, and an MLP or experts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys
from blis_sim.engine.memory.shapes import Attention, DenseMLP, FeedForward, LatentAttention, Layer, MoE

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")

_MISTRAL_WINDOW_TOKENS = 4096
"""The window of a Mistral whose config does not have `sliding_window`; null is none."""
_GEMMA4_LAYER_EMBEDDING_SIZE = 256
"""`hidden_size_per_layer_input` of a Gemma 4 whose config does not have it."""


class DecoderTraits(NamedTuple):
    """Properties that vLLM's class of a family fixes beyond the keys of a config."""

    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_gated_mlp: bool = True
    has_mlp_bias: bool = False
    moe_name: str = "mlp"
    shared_name: str = "shared_experts"
    has_moe_bias: bool = False
    needs_use_sliding_window: bool = False
    """Whether `sliding_window` limits layers, always all of them, only where `use_sliding_window` is true."""
    windows_every_other_layer: bool = False
    """Whether every other layer has the window, the first one included, regardless of `layer_types`."""


def dense_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read a decoder whose layers differ by `layer_types` alone."""
    num_layers = keys.positive("num_hidden_layers")
    windows = layer_windows(keys, traits, num_layers)
    feed_forward = feed_forward_of(keys, traits, num_layers)
    attention = attention_of(keys, traits)
    mixers = {window: attention._replace(window_tokens=window) for window in windows}
    return tuple(Layer(mixer=mixers[windows[index]], feed_forward=feed_forward(index)) for index in range(num_layers))


def attention_of(keys: ConfigKeys, traits: DecoderTraits) -> Attention:
    """Read heads and head sizes. vLLM's own default of the head size is an equal share of the hidden size."""
    heads = keys.positive("num_attention_heads")
    head_size = keys.count("head_dim", "attention_head_dim", "hidden_size_per_head", default=0)
    head_size = head_size or keys.positive("hidden_size") // heads
    return Attention(
        heads=heads,
        kv_heads=keys.count("num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=0) or heads,
        head_size=head_size,
        value_head_size=keys.count("v_head_dim", default=0) or head_size,
        has_qkv_bias=traits.has_qkv_bias or keys.flag("attention_bias") or keys.flag("qkv_bias"),
        has_output_bias=traits.has_output_bias,
        has_gate=keys.flag("attn_output_gate") or keys.flag("attention_output_gate"),
    )


def layer_windows(keys: ConfigKeys, traits: DecoderTraits, num_layers: int) -> Sequence[int]:
    """Return the sliding window of every layer in tokens, 0 for layers that attend to everything."""
    is_mistral = keys.text("model_type") == "mistral"
    window = _MISTRAL_WINDOW_TOKENS if is_mistral and "sliding_window" not in keys.keys else 0
    window = keys.count("sliding_window", default=window)
    kinds = keys.per_layer("layer_types", num_layers)
    if traits.windows_every_other_layer:
        return [0 if index % 2 else window for index in range(num_layers)]
    if traits.needs_use_sliding_window:
        return [window] * num_layers if _has_window_everywhere(keys, kinds, num_layers) else [0] * num_layers
    if kinds:
        return [window if _is_sliding(keys, kind) else 0 for kind in kinds[:num_layers]]
    pattern = keys.count("sliding_window_pattern", default=0)
    if pattern and window:
        return [0 if (index + 1) % pattern == 0 else window for index in range(num_layers)]
    return [window] * num_layers


def _has_window_everywhere(keys: ConfigKeys, kinds: Sequence[object], num_layers: int) -> bool:
    """Return whether a Qwen has its window; vLLM supports none that only some of the layers have."""
    if not keys.flag("use_sliding_window"):
        return False
    if kinds:
        return all(_is_sliding(keys, kind) for kind in kinds[:num_layers])
    return keys.count("max_window_layers", default=0) == 0


def _is_sliding(keys: ConfigKeys, kind: object) -> bool:
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(kind, str) or kind not in known:
        raise EngineError(f"{keys.model}: the layer kind {kind!r} of layer_types is not modelled")
    return known[kind]


def feed_forward_of(
    keys: ConfigKeys, traits: DecoderTraits, num_layers: int
) -> Callable[[int], tuple[FeedForward, ...]]:
    """Return a function from the index of a layer to its MLP or experts."""
    experts = next((count for key in EXPERT_COUNTS if (count := keys.count(key, default=0)) > 1), 0)
    size = keys.count("intermediate_size", "ffn_hidden_size", default=0)
    dense_size = keys.count("dense_intermediate_size", "intermediate_size_mlp", default=0) or size
    dense = DenseMLP(
        intermediate_size=dense_size,
        has_gate=traits.has_gated_mlp,
        has_bias=traits.has_mlp_bias or keys.flag("mlp_bias"),
    )
    if not experts:
        keys.positive("intermediate_size", "ffn_hidden_size")
        return lambda index: (dense,)
    moe = moe_of(keys, traits, experts, size)
    has_experts = _layers_with_experts(keys, num_layers)
    return lambda index: (moe,) if has_experts[index] else (dense,)


def moe_of(keys: ConfigKeys, traits: DecoderTraits, experts: int, default_size: int) -> MoE:
    """Read the routed experts and the shared one."""
    size = keys.count("moe_intermediate_size", default=0) or default_size
    shared = keys.count("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size", default=0)
    shared = shared or keys.count("n_shared_experts", "num_shared_experts", default=0) * size
    if size < 1:
        raise EngineError(f"{keys.model}: moe_intermediate_size must be a number of at least 1, got {size}")
    return MoE(
        experts=experts,
        intermediate_size=size,
        experts_per_token=chosen_experts(keys),
        shared_size=shared,
        has_bias=traits.has_moe_bias,
        name=traits.moe_name,
        shared_name=traits.shared_name,
    )


def chosen_experts(keys: ConfigKeys) -> int:
    """Return how many experts every token passes through."""
    names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "experts_per_token")
    return max(1, keys.count(*names, default=1))


def _layers_with_experts(keys: ConfigKeys, num_layers: int) -> list[bool]:
    """Return for every layer whether it has experts, from whichever key the family states it with."""
    kinds = keys.per_layer("mlp_layer_types", num_layers)
    if kinds:
        return [kind == "sparse" for kind in kinds[:num_layers]]
    frequency = keys.keys.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(value) for value in keys.per_layer("moe_layer_freq", num_layers)[:num_layers]]
    first = keys.count("first_k_dense_replace", default=0)
    step = keys.count("moe_layer_freq", "decoder_sparse_step", default=1) or 1
    without = set(keys.items("mlp_only_layers"))
    by_position = keys.has("decoder_sparse_step")
    return [
        index >= first and index not in without and ((index + 1) % step == 0 if by_position else index % step == 0)
        for index in range(num_layers)
    ]


def llama4_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read Llama 4: three of four layers attend to a local chunk, and experts come at every `interleave` step."""
    num_layers = keys.positive("num_hidden_layers")
    attention = attention_of(keys, traits)
    chunk = keys.count("attention_chunk_size", default=0)
    no_rope = keys.per_layer("no_rope_layers", num_layers) or [int((i + 1) % 4 != 0) for i in range(num_layers)]
    step = keys.count("interleave_moe_layer_step", default=1) or 1
    size = keys.positive("intermediate_size")
    dense = DenseMLP(intermediate_size=keys.count("intermediate_size_mlp", default=size), name="feed_forward")
    moe = MoE(
        experts=keys.positive("num_local_experts"),
        intermediate_size=size,
        experts_per_token=chosen_experts(keys),
        shared_size=size,
        name="feed_forward",
        shared_name="shared_expert",
    )
    return tuple(
        Layer(
            mixer=attention._replace(chunk_tokens=chunk if no_rope[index] else 0),
            feed_forward=(moe if (index + 1) % step == 0 else dense,),
        )
        for index in range(num_layers)
    )


def mimo_v2_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read MiMo-V2: windowed layers have heads of their own."""
    num_layers = keys.positive("num_hidden_layers")
    full = attention_of(keys, traits)
    windowed = Attention(
        heads=keys.count("swa_num_attention_heads", default=full.heads),
        kv_heads=keys.count("swa_num_key_value_heads", default=full.kv_heads),
        head_size=keys.count("swa_head_dim", default=full.head_size),
        value_head_size=keys.count("swa_v_head_dim", default=full.value_head_size),
        window_tokens=keys.positive("sliding_window", "sliding_window_size"),
    )
    pattern = keys.per_layer("hybrid_layer_pattern", num_layers) or [0] * num_layers
    feed_forward = feed_forward_of(keys, traits, num_layers)
    return tuple(
        Layer(mixer=windowed if pattern[index] else full, feed_forward=feed_forward(index))
        for index in range(num_layers)
    )


def gemma4_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read Gemma 4: full layers have wider heads, experts stand beside an MLP, the last layers may share caches."""
    num_layers = keys.positive("num_hidden_layers")
    windows = layer_windows(keys, traits, num_layers)
    windowed = attention_of(keys, traits)
    global_size = keys.count("global_head_dim", default=0) or windowed.head_size
    global_heads = keys.count("num_global_key_value_heads", default=0)
    full = windowed._replace(
        head_size=global_size,
        value_head_size=global_size,
        kv_heads=global_heads if global_heads and keys.flag("attention_k_eq_v") else windowed.kv_heads,
    )
    first_shared = num_layers - keys.count("num_kv_shared_layers", default=0)
    per_layer_size = layer_embedding_size(keys)
    size = keys.positive("intermediate_size")
    widens = keys.flag("use_double_wide_mlp")
    experts = keys.count("num_experts", default=0) if keys.flag("enable_moe_block") else 0
    moe = (moe_of(keys, traits._replace(moe_name=""), experts, size),) if experts else ()
    layers = []
    for index in range(num_layers):
        is_shared = index >= first_shared
        mlp = DenseMLP(intermediate_size=size * (2 if widens and is_shared else 1))
        attention = windowed._replace(window_tokens=windows[index]) if windows[index] else full
        layers.append(
            Layer(
                mixer=attention._replace(reuses_cache=is_shared),
                feed_forward=(mlp, *moe),
                other_parameters=2 * per_layer_size * keys.positive("hidden_size"),
            )
        )
    return tuple(layers)


def layer_embedding_size(keys: ConfigKeys) -> int:
    """Return the width of the embeddings that every layer of a Gemma 4 has of its own; 0 for models without them."""
    default = _GEMMA4_LAYER_EMBEDDING_SIZE if keys.text("model_type") == "gemma4_text" else 0
    return keys.count("hidden_size_per_layer_input", default=default)


def minimax_m3_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read MiniMax-M3: sparse layers choose blocks of tokens with an index of their own."""
    num_layers = keys.positive("num_hidden_layers")
    attention = attention_of(keys, traits)
    sparse = keys.object("sparse_attention_config")
    frequency = sparse.per_layer("sparse_attention_freq", num_layers) or [0] * num_layers
    feed_forward = feed_forward_of(keys, traits, num_layers)
    indexed = attention._replace(
        index_heads=sparse.count("sparse_num_index_heads", default=0),
        index_head_size=sparse.count("sparse_index_dim", default=0),
        caches_index=True,
    )
    return tuple(
        Layer(mixer=indexed if frequency[index] else attention, feed_forward=feed_forward(index))
        for index in range(num_layers)
    )


def nemotron_nas_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read DeciLM and Nemotron-NAS: `block_configs` states heads and width of every layer, or that it has none."""
    num_layers = keys.positive("num_hidden_layers")
    blocks = keys.per_layer("block_configs", num_layers)
    if not blocks:
        return dense_layers(keys, traits)
    attention = attention_of(keys, traits)
    hidden = keys.positive("hidden_size")
    return tuple(_nas_layer(keys, attention, hidden, block) for block in blocks[:num_layers])


def _nas_layer(keys: ConfigKeys, attention: Attention, hidden: int, block: Any) -> Layer:
    if not isinstance(block, Mapping):
        raise EngineError(f"{keys.model}: block_configs must be a list of objects")
    parts = ConfigKeys(f"{keys.model}: block_configs", block)
    heads, ffn = parts.object("attention"), parts.object("ffn")
    for part in (heads, ffn):
        if part.flag("replace_with_linear"):
            raise EngineError(f"{keys.model}: the layer kind replace_with_linear of block_configs is not modelled")
    mixer = None if heads.flag("no_op") else attention._replace(kv_heads=_group_heads(attention, heads))
    if ffn.flag("no_op"):
        return Layer(mixer=mixer)
    return Layer(mixer=mixer, feed_forward=(DenseMLP(intermediate_size=_nas_width(ffn, hidden)),))


def _group_heads(attention: Attention, heads: ConfigKeys) -> int:
    return attention.heads // heads.positive("n_heads_in_group")


def _nas_width(ffn: ConfigKeys, hidden: int) -> int:
    """Return the width of an MLP from its factor, rounded up to a multiple of 256 as the checkpoints are."""
    if ffn.has("intermediate_size"):
        return ffn.positive("intermediate_size")
    factor = ffn.keys.get("ffn_mult")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
        raise EngineError(f"{ffn.model}: ffn_mult must be a number above 0, got {factor!r}")
    width = int(2 * factor * hidden / 3)
    return -(-width // 256) * 256


def latent_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read a decoder with latent attention on every layer, sparse when the config has `index_topk`."""
    if keys.has("compress_ratios"):
        raise EngineError(f"{keys.model}: the layer kind compressed sparse attention (compress_ratios) is not modelled")
    num_layers = keys.positive("num_hidden_layers")
    feed_forward = feed_forward_of(keys, traits, num_layers)
    owns_indexer = _layers_with_indexer(keys, num_layers)
    return tuple(
        Layer(mixer=latent_attention(keys, owns_indexer[index]), feed_forward=feed_forward(index))
        for index in range(num_layers)
    )


def latent_attention(keys: ConfigKeys, has_indexer: bool = False) -> LatentAttention:
    """Read the ranks and head sizes of latent attention."""
    return LatentAttention(
        heads=keys.positive("num_attention_heads"),
        q_lora_rank=keys.count("q_lora_rank", default=0),
        kv_lora_rank=keys.positive("kv_lora_rank"),
        nope_head_size=keys.count("qk_nope_head_dim", default=0),
        rope_head_size=keys.count("qk_rope_head_dim", default=0),
        value_head_size=keys.positive("v_head_dim"),
        is_sparse=keys.has("index_topk"),
        has_indexer=has_indexer,
        index_heads=keys.count("index_n_heads", default=0),
        index_head_size=keys.count("index_head_dim", default=0),
        has_gate=keys.flag("mla_use_output_gate"),
    )


def _layers_with_indexer(keys: ConfigKeys, num_layers: int) -> list[bool]:
    """Return for every layer whether it has an indexer; the others take the tokens that the one before them chose."""
    if not keys.has("index_topk"):
        return [False] * num_layers
    kinds = keys.per_layer("indexer_types", num_layers)
    if kinds:
        return [kind != "shared" for kind in kinds[:num_layers]]
    pattern = keys.text("index_topk_pattern")
    if pattern:
        return [kind != "S" for kind in pattern[:num_layers].ljust(num_layers, "F")]
    step = keys.count("index_topk_freq", default=1) or 1
    offset = keys.count("index_skip_topk_offset", default=0)
    if step == 1:
        return [True] * num_layers
    return [max(index - offset + 1, 0) % step == 0 for index in range(num_layers)]
