"""The matrices of attention and of layers with a recurrent state, on one GPU."""

from collections.abc import Iterator

from blis_sim.engine.memory.modules import Module
from blis_sim.engine.memory.shapes import Attention, GatedDeltaNet, KimiDelta, LatentAttention, Mamba2, Mixer
from blis_sim.engine.memory.sharding import Sharding


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
