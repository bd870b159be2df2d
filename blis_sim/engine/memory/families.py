"""The families of models that the planner reads, by the names of vLLM's classes in `architectures`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys, with_usual_names
from blis_sim.engine.memory.weights import (
    DTYPE_BYTES,
    Attention,
    DenseMLP,
    FeedForward,
    GatedDeltaNet,
    KimiDelta,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
    MoE,
)

# Readers of decoders whose layers are attention, full, limited to a window or latent, and an MLP or experts.

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


# Readers of hybrids: layers of attention between layers with a recurrent state.


def qwen_hybrid_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read Qwen3-Next and Qwen3.5: gated delta nets, and full attention on every fourth layer."""
    num_layers = keys.positive("num_hidden_layers")
    interval = keys.count("full_attention_interval", default=4) or 4
    kinds = keys.per_layer("layer_types", num_layers) or [
        "full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in range(num_layers)
    ]
    mixers: dict[str, Mixer] = {
        "full_attention": attention_of(keys, traits),
        "linear_attention": GatedDeltaNet(
            key_heads=keys.positive("linear_num_key_heads"),
            value_heads=keys.positive("linear_num_value_heads"),
            key_head_size=keys.positive("linear_key_head_dim"),
            value_head_size=keys.positive("linear_value_head_dim"),
            conv_kernel=keys.positive("linear_conv_kernel_dim"),
            state_dtype=keys.text("mamba_ssm_dtype", keys.text("dtype", keys.text("torch_dtype", "bfloat16"))),
        ),
    }
    feed_forward = feed_forward_of(keys, traits, num_layers)
    for kind in kinds[:num_layers]:
        if kind not in mixers:
            raise EngineError(f"{keys.model}: the layer kind {kind!r} of layer_types is not modelled")
    return tuple(Layer(mixer=mixers[kinds[index]], feed_forward=feed_forward(index)) for index in range(num_layers))


def nemotron_h_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read Nemotron-H: one letter of `hybrid_override_pattern` is one layer, M, *, E or -."""
    pattern = keys.text("hybrid_override_pattern") or _letters(keys)
    attention = attention_of(keys, traits)
    mamba = Mamba2(
        heads=keys.positive("mamba_num_heads"),
        head_size=keys.positive("mamba_head_dim"),
        state_size=keys.positive("ssm_state_size"),
        groups=keys.positive("n_groups"),
        conv_kernel=keys.positive("conv_kernel"),
        state_dtype=keys.text("mamba_ssm_cache_dtype", "float32"),
        has_bias=keys.flag("mamba_proj_bias"),
    )
    kinds: dict[str, Layer] = {
        "M": Layer(mixer=mamba),
        "*": Layer(mixer=attention._replace(name="mixer")),
        "-": Layer(
            feed_forward=(DenseMLP(intermediate_size=keys.positive("intermediate_size"), has_gate=False, name="mixer"),)
        ),
    }
    if "E" in pattern:
        kinds["E"] = Layer(feed_forward=(_nemotron_experts(keys),))
    for letter in pattern:
        if letter not in kinds:
            raise EngineError(f"{keys.model}: the layer kind {letter!r} of hybrid_override_pattern is not modelled")
    return tuple(kinds[letter] for letter in pattern)


def _letters(keys: ConfigKeys) -> str:
    """Return the pattern that `layers_block_type` spells out."""
    letters = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
    kinds = keys.items("layers_block_type")
    if not kinds:
        raise EngineError(f"{keys.model}: hybrid_override_pattern must be a string, got no such key")
    for kind in kinds:
        if kind not in letters:
            raise EngineError(f"{keys.model}: the layer kind {kind!r} of layers_block_type is not modelled")
    return "".join(letters[kind] for kind in kinds)


def _nemotron_experts(keys: ConfigKeys) -> MoE:
    return MoE(
        experts=keys.positive("n_routed_experts"),
        intermediate_size=keys.positive("moe_intermediate_size"),
        experts_per_token=chosen_experts(keys),
        shared_size=keys.count("n_shared_experts", default=0)
        * keys.count("moe_shared_expert_intermediate_size", default=0),
        has_gate=False,
        latent_size=keys.count("moe_latent_size", default=0),
        name="mixer",
    )


def kimi_linear_layers(keys: ConfigKeys, traits: DecoderTraits) -> tuple[Layer, ...]:
    """Read Kimi Linear and Kimi K3: Kimi delta attention, and latent attention on the layers listed as full."""
    num_layers = keys.positive("num_hidden_layers")
    linear = keys.object("linear_attn_config")
    full = {index - 1 for index in linear.items("full_attn_layers") if isinstance(index, int)}
    delta = KimiDelta(
        heads=linear.positive("num_heads"),
        head_size=linear.positive("head_dim"),
        conv_kernel=linear.positive("short_conv_kernel_size"),
        has_full_rank_gate=linear.flag("use_full_rank_gate"),
        has_bounded_gate=linear.has("gate_lower_bound"),
    )
    latent = latent_attention(keys)
    dense = DenseMLP(intermediate_size=keys.positive("intermediate_size"))
    first = keys.count("first_k_dense_replace", default=0)
    experts = keys.count("num_experts", default=0)
    moe = moe_of(keys, traits, experts, 0) if experts else None
    if moe is not None and keys.has("routed_expert_hidden_size"):
        moe = moe._replace(latent_size=keys.positive("routed_expert_hidden_size"))
    return tuple(
        Layer(
            mixer=latent if index in full else delta,
            feed_forward=(moe if moe is not None and index >= first else dense,),
        )
        for index in range(num_layers)
    )


_MLP_MATRICES, _GATED_MATRICES = 2, 3


class VisionParameters(NamedTuple):
    """Parameters that tensor parallelism divides, and those that every GPU holds in full."""

    sharded: int = 0
    replicated: int = 0


def vision_parameters(config: ConfigKeys, hidden_size: int) -> VisionParameters:
    """Return the parameters of the tower that `vision_config` describes, none without one.

    Towers differ in their keys, not in their parts: patches, positions, blocks of attention and an MLP, a projector.
    """
    vision = config.object("vision_config")
    if not vision.keys:
        return VisionParameters()
    width = vision.count("vt_hidden_size", "hidden_size", "embed_dim", default=0)
    depth = vision.count("vt_num_hidden_layers", "depth", "num_hidden_layers", default=0)
    inner = vision.count("vt_intermediate_size", "intermediate_size", default=0) or 4 * width
    attention = vision.count("qkv_hidden_size", default=0) or width
    kind = vision.text("model_type", config.text("model_type"))
    is_gated = kind.startswith(("gemma4", "pixtral", "qwen2_5_vl"))
    blocks = depth * (4 * width * attention + (_GATED_MATRICES if is_gated else _MLP_MATRICES) * width * inner)
    patches = _patch_parameters(vision, width)
    projector = _projector_parameters(config, vision, width, hidden_size)
    if kind.startswith("gemma4"):
        return VisionParameters(replicated=blocks + patches + projector)
    return VisionParameters(sharded=blocks + projector, replicated=patches)


def _patch_parameters(vision: ConfigKeys, width: int) -> int:
    """Return the parameters of the patch embedding and of learned positions."""
    patch = vision.count("patch_size", default=0)
    frames = vision.count("temporal_patch_size", default=1) or 1
    positions = vision.count("num_position_embeddings", default=0)
    if not positions and vision.has("position_embedding_size"):
        positions = 2 * vision.count("position_embedding_size")
    if not positions and vision.has("init_pos_emb_height"):
        positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width", default=0)
    if not positions and vision.has("image_size") and patch and vision.text("position_embedding_type") != "rope":
        positions = (vision.count("image_size") // patch) ** 2 + 1
    return width * (3 * frames * patch * patch + positions)


def _projector_parameters(config: ConfigKeys, vision: ConfigKeys, width: int, hidden_size: int) -> int:
    """Return the parameters between the tower and the decoder."""
    merge = vision.count("spatial_merge_size", default=0)
    kernel = vision.items("merge_kernel_size")
    if kernel:
        merge = int(kernel[0])
    output = vision.count("out_hidden_size", "text_hidden_size", default=0) or hidden_size
    if config.text("model_type") == "llama4":
        middle = vision.count("projector_input_dim", default=0)
        last = vision.count("projector_output_dim", default=0)
        wide = vision.count("vision_output_dim", default=0)
        return middle * vision.count("intermediate_size", default=0) + middle * last + wide * hidden_size
    compression = config.object("img_token_compression_config")
    if compression.keys:
        merge = compression.count("spatial_merge_size", default=2)
        inner = config.count("projector_hidden_size", default=hidden_size)
        merger = inner * inner * merge * merge + inner * hidden_size
        return width * inner + inner * inner + merger
    if merge:
        merged = width * merge * merge
        heads = 1 + len(vision.items("deepstack_visual_indexes"))
        return heads * (merged * merged + merged * output)
    return width * hidden_size


Reader = Callable[[ConfigKeys, DecoderTraits], tuple[Layer, ...]]


class Family(NamedTuple):
    """How the decoder of a family is read. `is_tied` is the default of `tie_word_embeddings`.

    Classes of `embeds_everywhere` and `has_heads_everywhere` keep embeddings or head on all pipeline stages.
    """

    reader: Reader
    traits: DecoderTraits = DecoderTraits()
    is_tied: bool = False
    embeds_everywhere: bool = False
    has_heads_everywhere: bool = False


def _everywhere(reader: Reader, traits: DecoderTraits | None = None, is_tied: bool = False) -> Family:
    """Return a family whose class keeps embeddings and head on all pipeline stages."""
    return Family(reader, traits or DecoderTraits(), is_tied, embeds_everywhere=True, has_heads_everywhere=True)


_PLAIN = Family(dense_layers)
_BLOCK_SPARSE = Family(dense_layers, DecoderTraits(moe_name="block_sparse_moe"))
_QWEN2 = Family(dense_layers, DecoderTraits(has_qkv_bias=True, needs_use_sliding_window=True))
_QWEN3 = Family(dense_layers, DecoderTraits(needs_use_sliding_window=True))
_QWEN_MOE = _everywhere(dense_layers, DecoderTraits(shared_name="shared_expert", needs_use_sliding_window=True))
_QWEN2_MOE = _everywhere(
    dense_layers, DecoderTraits(has_qkv_bias=True, shared_name="shared_expert", needs_use_sliding_window=True)
)
_GEMMA = _everywhere(dense_layers, is_tied=True)
_LATENT = Family(latent_layers)
_QWEN_HYBRID = Family(qwen_hybrid_layers, DecoderTraits(shared_name="shared_expert"), embeds_everywhere=True)
_QWEN_NEXT = _everywhere(qwen_hybrid_layers, DecoderTraits(shared_name="shared_expert"))
_NEMOTRON_H = _everywhere(nemotron_h_layers)
_KIMI = Family(kimi_linear_layers, DecoderTraits(moe_name="block_sparse_moe"))
_GPT_OSS = _everywhere(
    dense_layers,
    DecoderTraits(has_qkv_bias=True, has_output_bias=True, has_moe_bias=True, windows_every_other_layer=True),
)
_PHI_MOE = _everywhere(
    dense_layers, DecoderTraits(has_qkv_bias=True, has_output_bias=True, moe_name="block_sparse_moe")
)
_LLAMA4 = Family(llama4_layers)
_GEMMA4 = _everywhere(gemma4_layers, is_tied=True)
_PLAIN_MLP = Family(
    dense_layers, DecoderTraits(has_qkv_bias=True, has_output_bias=True, has_gated_mlp=False, has_mlp_bias=True)
)
_GPT2 = _PLAIN_MLP._replace(is_tied=True)
_GEMMA2 = _everywhere(dense_layers, DecoderTraits(windows_every_other_layer=True), is_tied=True)
_MINIMAX_M3 = Family(minimax_m3_layers, DecoderTraits(moe_name="block_sparse_moe"))

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _PLAIN,
    "MistralForCausalLM": _PLAIN,
    "Ministral3ForCausalLM": _PLAIN,
    "Mistral3ForConditionalGeneration": _PLAIN,
    "LlavaForConditionalGeneration": _PLAIN,
    "MixtralForCausalLM": _everywhere(dense_layers, DecoderTraits(moe_name="block_sparse_moe")),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN2_MOE,
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN_MOE,
    "Qwen3NextForCausalLM": _QWEN_NEXT,
    "Qwen3_5ForCausalLM": _QWEN_HYBRID,
    "Qwen3_5MoeForCausalLM": _QWEN_HYBRID,
    "Qwen3_5ForConditionalGeneration": _QWEN_HYBRID,
    "Qwen3_5MoeForConditionalGeneration": _QWEN_HYBRID,
    "MiMoForCausalLM": _QWEN2,
    "MiMoV2FlashForCausalLM": Family(mimo_v2_layers),
    "MiniMaxM2ForCausalLM": _BLOCK_SPARSE,
    "MiniMaxM3ForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForConditionalGeneration": _MINIMAX_M3,
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": _LATENT,
    "DeepseekV4ForCausalLM": _LATENT,
    "GlmMoeDsaForCausalLM": _LATENT,
    "Glm4MoeLiteForCausalLM": _LATENT,
    "KimiK25ForConditionalGeneration": _LATENT,
    "KimiLinearForCausalLM": _KIMI,
    "KimiK3ForConditionalGeneration": _KIMI,
    "GptOssForCausalLM": _GPT_OSS,
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "NemotronHForCausalLM": _NEMOTRON_H,
    "DeciLMForCausalLM": Family(nemotron_nas_layers),
    "Glm4MoeForCausalLM": _PLAIN,
    "Phi3ForCausalLM": _PLAIN,
    "PhiMoEForCausalLM": _PHI_MOE,
    "OPTForCausalLM": _GPT2,
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": _GPT2,
    "GPTNeoXForCausalLM": _PLAIN_MLP,
    "GPTJForCausalLM": _PLAIN_MLP,
    "BloomForCausalLM": _GPT2,
    "FalconForCausalLM": _GPT2,
    "MPTForCausalLM": _GPT2,
    "PhiForCausalLM": _PLAIN_MLP,
    "Starcoder2ForCausalLM": _PLAIN_MLP,
    "StableLmForCausalLM": _PLAIN,
    "SmolLM3ForCausalLM": _PLAIN,
    "InternLM2ForCausalLM": _PLAIN,
    "OlmoForCausalLM": _PLAIN,
    "GraniteForCausalLM": _PLAIN,
    "GraniteMoeForCausalLM": _everywhere(dense_layers, DecoderTraits(moe_name="block_sparse_moe")),
    "Olmo2ForCausalLM": _PLAIN,
    "SeedOssForCausalLM": _PLAIN,
    "Step3p5ForCausalLM": _PLAIN,
    "Step3p7FlashForCausalLM": _PLAIN,
}


_BY_MODEL_TYPE: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "llama4_text": "Llama4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "granite": "GraniteForCausalLM",
}
"""vLLM's class for a `config.json` that has a `model_type` and no `architectures`."""


def read_model(config: Mapping[str, Any], model: str, dtype: str = "auto") -> ModelShape:
    """Return the shape of the model that a `config.json` describes.

    `dtype` is the value of --dtype. Raises EngineError, in one line, for an architecture or a layer kind that is not
    modelled and for a key that is missing or impossible.
    """
    top = ConfigKeys(model, with_usual_names(config))
    text = config.get("text_config") or config.get("language_config")
    keys = ConfigKeys(model, with_usual_names(text)) if isinstance(text, Mapping) else top
    model_type = top.text("model_type")
    architecture = next((str(name) for name in top.items("architectures")), _BY_MODEL_TYPE.get(model_type, ""))
    if not architecture:
        raise EngineError(
            f"{model}: architectures must name vLLM's class of the model, got no such key and model_type {model_type!r}"
        )
    family = FAMILIES.get(architecture)
    if family is None:
        raise EngineError(f"{model}: the architecture {architecture} is not modelled, so its layer kinds are not known")
    hidden = keys.positive("hidden_size")
    vision = vision_parameters(top, hidden)
    return ModelShape(
        model=model,
        hidden_size=hidden,
        vocab_size=keys.positive("vocab_size"),
        is_tied=_is_tied(top, keys, family),
        layers=family.reader(keys, family.traits),
        layer_embedding_size=layer_embedding_size(keys) * keys.count("num_hidden_layers", default=0),
        dtype=_dtype(top, keys, dtype),
        vision_parameters=vision.sharded,
        vision_replicated=vision.replicated,
        architecture=architecture,
        embeds_everywhere=family.embeds_everywhere,
        has_heads_everywhere=family.has_heads_everywhere,
    )


def _is_tied(top: ConfigKeys, keys: ConfigKeys, family: Family) -> bool:
    if top.has("tie_word_embeddings"):
        return top.flag("tie_word_embeddings")
    return keys.flag("tie_word_embeddings", family.is_tied)


def _dtype(top: ConfigKeys, keys: ConfigKeys, requested: str) -> str:
    """Return the precision of the model: what was requested, else the config's; 32 bits run as 16, as in vLLM."""
    if requested != "auto":
        if requested not in DTYPE_BYTES:
            raise EngineError(f"--dtype must be one of auto, {', '.join(DTYPE_BYTES)}, got {requested!r}")
        return requested
    places = (top, keys, top.object("vision_config"))
    found = next(
        (place.text(key) for place in places for key in ("dtype", "torch_dtype") if place.has(key)), "float32"
    ).removeprefix("torch.")
    if found not in DTYPE_BYTES:
        raise EngineError(f"{top.model}: dtype must be one of {', '.join(DTYPE_BYTES)}, got {found!r}")
    return "bfloat16" if found in ("float32", "float") else found
