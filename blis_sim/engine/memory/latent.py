"""Readers of decoders with multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5."""

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.config_keys import ConfigKeys
from blis_sim.engine.memory.decoders import DecoderTraits, feed_forward_of
from blis_sim.engine.memory.shapes import LatentAttention, Layer


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
