"""Bytes of a model's parameters on one GPU of every pipeline stage, as vLLM holds them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from blis_sim.engine.memory.modules import EXPERTS, HEAD, MXFP4, FormatOf, Module, WeightFormat, plain
from blis_sim.engine.memory.shapes import (
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
    Sharding,
    stage_layers,
)


def mixer_modules(mixer: Mixer, hidden: int, prefix: str, sharding: Sharding) -> Iterator[Module]:
    """Yield the modules of one mixer; `prefix` is the name of its layer with a dot behind it."""
    name = f"{prefix}{mixer.name}."
    if isinstance(mixer, Attention):
        yield from _attention(mixer, hidden, name, sharding)
    elif isinstance(mixer, LatentAttention):
        yield from _latent(mixer, hidden, name, sharding)
    elif isinstance(mixer, Mamba2):
        yield from _mamba2(mixer, hidden, name, sharding)
    elif isinstance(mixer, GatedDeltaNet):
        yield from _gated_delta_net(mixer, hidden, name, sharding)
    else:
        yield from _kimi_delta(mixer, hidden, name, sharding)


def _attention(attention: Attention, hidden: int, name: str, sharding: Sharding) -> Iterator[Module]:
    heads = sharding.part(attention.heads, "attention heads")
    kv_heads = sharding.kv_heads(attention.kv_heads)
    rows = heads * attention.head_size * (2 if attention.has_gate else 1)
    rows += kv_heads * (attention.head_size + attention.value_head_size)
    if attention.index_heads:
        rows += (max(1, attention.index_heads // sharding.tp) + 1) * attention.index_head_size
    yield Module(
        name=f"{name}qkv_proj",
        matrices=((rows, hidden),),
        shards=("q_proj", "k_proj", "v_proj"),
        other_parameters=rows if attention.has_qkv_bias else 0,
    )
    yield Module(
        name=f"{name}o_proj",
        matrices=((hidden, heads * attention.value_head_size),),
        other_parameters=hidden if attention.has_output_bias else 0,
    )


def _latent(attention: LatentAttention, hidden: int, name: str, sharding: Sharding) -> Iterator[Module]:
    heads = sharding.part(attention.heads, "attention heads")
    query_rows = heads * (attention.nope_head_size + attention.rope_head_size)
    value_rows = heads * attention.value_head_size
    gate_rows = value_rows if attention.has_gate else 0
    if attention.q_lora_rank:
        yield Module(
            name=f"{name}fused_qkv_a_proj",
            matrices=((attention.q_lora_rank + attention.latent_size + gate_rows, hidden),),
            shards=("q_a_proj", "kv_a_proj_with_mqa"),
        )
        yield Module(name=f"{name}q_b_proj", matrices=((query_rows, attention.q_lora_rank),))
    else:
        yield Module(name=f"{name}q_proj", matrices=((query_rows, hidden),))
        yield Module(name=f"{name}kv_a_proj_with_mqa", matrices=((attention.latent_size + gate_rows, hidden),))
    yield Module(
        name=f"{name}kv_b_proj",
        matrices=((heads * (attention.nope_head_size + attention.value_head_size), attention.kv_lora_rank),),
    )
    yield Module(name=f"{name}o_proj", matrices=((hidden, value_rows),))
    if attention.has_indexer:
        index_rows = attention.index_heads * attention.index_head_size
        yield Module(name=f"{name}indexer.wq_b", matrices=((index_rows, attention.q_lora_rank or hidden),))
        # The key projection and the weights of the heads stay in full precision whatever the checkpoint is.
        yield Module(
            name=f"{name}indexer.k_norm",
            matrices=(),
            other_parameters=(attention.index_head_size + attention.index_heads) * hidden,
        )


def _mamba2(mamba: Mamba2, hidden: int, name: str, sharding: Sharding) -> Iterator[Module]:
    inner = sharding.part(mamba.inner_size, "Mamba channels")
    heads = sharding.part(mamba.heads, "Mamba heads")
    state_rows = 2 * local_groups(mamba, sharding) * mamba.state_size
    rows = 2 * inner + state_rows + heads
    yield Module(
        name=f"{name}in_proj",
        matrices=((rows, hidden),),
        other_parameters=(inner + state_rows) * (mamba.conv_kernel + 1) + (rows if mamba.has_bias else 0),
    )
    yield Module(name=f"{name}out_proj", matrices=((hidden, inner),))


def local_groups(mamba: Mamba2, sharding: Sharding) -> int:
    """Return the groups of a Mamba-2 layer on one GPU: where tp does not divide them, each GPU holds a copy of one."""
    return max(1, mamba.groups // sharding.tp) if mamba.groups % sharding.tp == 0 else 1


def _gated_delta_net(net: GatedDeltaNet, hidden: int, name: str, sharding: Sharding) -> Iterator[Module]:
    keys = sharding.part(net.key_heads, "linear key heads") * net.key_head_size
    value_heads = sharding.part(net.value_heads, "linear value heads")
    values = value_heads * net.value_head_size
    yield Module(
        name=f"{name}in_proj_qkvz",
        matrices=((2 * keys + 2 * values, hidden),),
        shards=("in_proj_qkv", "in_proj_z"),
        other_parameters=(2 * keys + values) * net.conv_kernel,
    )
    yield Module(name=f"{name}in_proj_ba", matrices=((2 * value_heads, hidden),), shards=("in_proj_b", "in_proj_a"))
    yield Module(name=f"{name}out_proj", matrices=((hidden, values),))


def _kimi_delta(delta: KimiDelta, hidden: int, name: str, sharding: Sharding) -> Iterator[Module]:
    heads = sharding.part(delta.heads, "linear heads")
    inner = heads * delta.head_size
    gate_rows = inner if delta.has_full_rank_gate else delta.head_size
    yield Module(
        name=f"{name}in_proj_qkvgfab",
        matrices=((3 * inner + gate_rows + delta.head_size + heads, hidden),),
        shards=("q_proj", "k_proj", "v_proj"),
        other_parameters=2 * 3 * inner * delta.conv_kernel,
    )
    yield Module(name=f"{name}f_b_proj", matrices=((inner, delta.head_size),))
    if not delta.has_full_rank_gate:
        yield Module(name=f"{name}g_b_proj", matrices=((inner, delta.head_size),))
    yield Module(name=f"{name}o_proj", matrices=((hidden, inner),))


DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
_NORMS_PER_LAYER = 2


def weight_bytes(model: ModelShape, format_of: FormatOf, sharding: Sharding) -> tuple[int, ...]:
    """Return the bytes of one GPU's parameters, one number for every pipeline stage."""
    stages = stage_layers(len(model.layers), sharding.pp, model.model)
    full = plain(DTYPE_BYTES[model.dtype])
    return tuple(
        sum(module_bytes(module, format_of, full) for module in _stage_modules(model, stage, sharding, index))
        for index, stage in enumerate(stages)
    )


def bytes_per_weight(model: ModelShape, format_of: FormatOf) -> float:
    """Return the mean bytes of a weight in the matrices of all layers, scales included."""
    full = plain(DTYPE_BYTES[model.dtype])
    whole = Sharding(model=model.model)
    taken = weights = 0
    for index, layer in enumerate(model.layers):
        for module in layer_modules(model, layer, f"layers.{index}.", whole):
            size = module.count * sum(rows * columns for rows, columns in module.matrices)
            taken += module_bytes(module, format_of, full) if size else 0
            weights += size
    return taken / weights if weights else float(DTYPE_BYTES[model.dtype])


def _stage_modules(model: ModelShape, stage: range, sharding: Sharding, index: int) -> Iterator[Module]:
    """Yield the modules of one stage: the first has embeddings and towers, the last the norm and the head."""
    is_first, is_last = index == 0, index == sharding.pp - 1
    rows = sharding.vocabulary(model.vocab_size)
    vision = model.vision_replicated + -(-model.vision_parameters // sharding.tp)
    if vision and is_first:
        yield _parameters("vision", vision)
    if is_first or model.embeds_everywhere or (is_last and model.is_tied):
        of_layers = (rows + model.hidden_size // sharding.tp) * model.layer_embedding_size
        yield _parameters("embed_tokens", rows * model.hidden_size + of_layers)
    for layer_index in stage:
        yield from layer_modules(model, model.layers[layer_index], f"layers.{layer_index}.", sharding)
    if is_last or model.has_heads_everywhere:
        yield _parameters("norm", model.hidden_size)
        if not model.is_tied:
            yield Module(name="lm_head", role=HEAD, matrices=((rows, model.hidden_size),))


def _parameters(name: str, count: int) -> Module:
    return Module(name=name, matrices=(), other_parameters=count)


def layer_modules(model: ModelShape, layer: Layer, prefix: str, sharding: Sharding) -> Iterator[Module]:
    """Yield the modules of one layer; `prefix` is its name with a dot behind it."""
    yield _parameters(f"{prefix}norm", _NORMS_PER_LAYER * model.hidden_size + layer.other_parameters)
    if layer.mixer is not None:
        yield from mixer_modules(layer.mixer, model.hidden_size, prefix, sharding)
    for part in layer.feed_forward:
        yield from feed_forward_modules(part, model.hidden_size, prefix, sharding)


def feed_forward_modules(part: FeedForward, hidden: int, prefix: str, sharding: Sharding) -> Iterator[Module]:
    name = f"{prefix}{part.name}." if part.name else prefix
    if isinstance(part, DenseMLP):
        width = sharding.part(part.intermediate_size, "columns in its MLP")
        yield from _mlp(name, hidden, width, part.has_gate, part.has_bias)
        return
    yield _parameters(f"{name}gate", part.experts * hidden)
    if part.shared_size:
        width = sharding.part(part.shared_size, "columns in its shared expert")
        yield from _mlp(f"{name}{part.shared_name}.", hidden, width, part.has_gate, False)
    if part.latent_size:
        for latent_name in ("fc1_latent_proj", "fc2_latent_proj"):
            yield Module(name=f"{name}{latent_name}", matrices=((part.latent_size, hidden),))
    yield _experts(part, hidden, name, sharding)


def _mlp(name: str, hidden: int, width: int, has_gate: bool, has_bias: bool) -> Iterator[Module]:
    up_rows = width * (2 if has_gate else 1)
    yield Module(
        name=f"{name}{'gate_up_proj' if has_gate else 'up_proj'}",
        matrices=((up_rows, hidden),),
        shards=("gate_proj", "up_proj") if has_gate else (),
        other_parameters=up_rows if has_bias else 0,
    )
    yield Module(name=f"{name}down_proj", matrices=((hidden, width),), other_parameters=hidden if has_bias else 0)


def _experts(moe: MoE, hidden: int, name: str, sharding: Sharding) -> Module:
    experts, width = sharding.experts(moe.experts, moe.intermediate_size)
    inputs = moe.latent_size or hidden
    up_rows = width * (2 if moe.has_gate else 1)
    return Module(
        name=f"{name}{moe.experts_name}",
        role=EXPERTS,
        matrices=((up_rows, inputs), (inputs, width)),
        count=experts,
        other_parameters=experts * (up_rows + inputs) if moe.has_bias else 0,
    )


def _padded(module: Module) -> Module:
    """Return experts in MXFP4 as the kernels take them: inputs in multiples of 256, the inner width of 128."""
    (up_rows, inputs), (_, width) = module.matrices
    new_inputs, new_width = _round_up(inputs, 256), _round_up(width, 128)
    return replace(module, matrices=((up_rows // width * new_width, new_inputs), (new_inputs, new_width)))


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def module_bytes(module: Module, format_of: FormatOf, full: WeightFormat) -> int:
    """Return the bytes of a module, in `full` precision where it has no format."""
    weight_format = (format_of(module) if module.matrices else None) or full
    if module.role == EXPERTS and weight_format is MXFP4:
        module = _padded(module)
    matrices = sum(weight_format.matrix_bytes(rows, columns) for rows, columns in module.matrices)
    return module.count * matrices + module.other_parameters * full.bits // 8
