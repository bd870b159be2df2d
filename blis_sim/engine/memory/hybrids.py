"""Readers of hybrids: layers of attention between layers with a recurrent state."""

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys
from blis_sim.engine.memory.decoders import (
    DecoderTraits,
    attention_of,
    chosen_experts,
    feed_forward_of,
    latent_attention,
    moe_of,
)
from blis_sim.engine.memory.shapes import DenseMLP, GatedDeltaNet, KimiDelta, Layer, Mamba2, Mixer, MoE


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
