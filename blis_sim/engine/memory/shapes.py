"""The parts of a model that weights and KV cache depend on, and their division over GPUs."""

from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.errors import EngineError


class Attention(NamedTuple):
    """Attention that caches keys and values of `kv_heads` heads.

    `window_tokens` limits it to a sliding window and `chunk_tokens` to a local chunk; 0 means no limit. `index_heads`
    heads of `index_head_size` choose the tokens that a sparse layer attends to; `caches_index` layers cache their keys.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_head_size: int
    window_tokens: int = 0
    chunk_tokens: int = 0
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_gate: bool = False
    reuses_cache: bool = False
    index_heads: int = 0
    index_head_size: int = 0
    caches_index: bool = False
    name: str = "self_attn"


class LatentAttention(NamedTuple):
    """Multi-head latent attention (MLA): the cache holds one compressed vector per token, on every GPU in full.

    `has_indexer` layers choose tokens with an indexer of their own, which caches its keys too.
    """

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_head_size: int
    rope_head_size: int
    value_head_size: int
    is_sparse: bool = False
    has_indexer: bool = False
    index_heads: int = 0
    index_head_size: int = 0
    has_gate: bool = False
    name: str = "self_attn"

    @property
    def latent_size(self) -> int:
        """Elements of one token in the cache."""
        return self.kv_lora_rank + self.rope_head_size


class Mamba2(NamedTuple):
    """A Mamba-2 state space layer."""

    heads: int
    head_size: int
    state_size: int
    groups: int
    conv_kernel: int
    state_dtype: str
    has_bias: bool = False
    name: str = "mixer"

    @property
    def inner_size(self) -> int:
        """Width of the layer's inner stream."""
        return self.heads * self.head_size


class GatedDeltaNet(NamedTuple):
    """A gated delta net, the linear attention of Qwen3-Next and Qwen3.5."""

    key_heads: int
    value_heads: int
    key_head_size: int
    value_head_size: int
    conv_kernel: int
    state_dtype: str
    name: str = "linear_attn"


class KimiDelta(NamedTuple):
    """Kimi delta attention (KDA), a linear attention with one decay per channel.

    Kernels that keep states inside of a prefill need a gate with a lower bound.
    """

    heads: int
    head_size: int
    conv_kernel: int
    has_full_rank_gate: bool
    has_bounded_gate: bool = False
    name: str = "self_attn"


Mixer = Attention | LatentAttention | Mamba2 | GatedDeltaNet | KimiDelta


class DenseMLP(NamedTuple):
    """An MLP of two matrices, three with a gate."""

    intermediate_size: int
    has_gate: bool = True
    has_bias: bool = False
    name: str = "mlp"


class MoE(NamedTuple):
    """Routed experts, and a shared one of `shared_size` (0: none).

    With `latent_size` the routed experts see a stream of that width, projected down before and up after them.
    """

    experts: int
    intermediate_size: int
    experts_per_token: int = 1
    shared_size: int = 0
    has_gate: bool = True
    has_bias: bool = False
    latent_size: int = 0
    name: str = "mlp"
    experts_name: str = "experts"
    shared_name: str = "shared_experts"


FeedForward = DenseMLP | MoE


class Layer(NamedTuple):
    """One decoder layer: at most one mixer, and the feed-forward parts that it has."""

    mixer: Mixer | None = None
    feed_forward: tuple[FeedForward, ...] = ()
    other_parameters: int = 0


class ModelShape(NamedTuple):
    """A whole model.

    `vision_parameters` are those of its towers and projectors that tensor parallelism divides, `vision_replicated`
    those that it copies. Where `embeds_everywhere` or `has_heads_everywhere`, vLLM's class keeps embeddings or the
    output head on every pipeline stage instead of only on the stage that uses them. `layer_embedding_size` is the width
    of embeddings that layers have of their own, all layers together.
    """

    model: str
    hidden_size: int
    vocab_size: int
    is_tied: bool
    layers: tuple[Layer, ...]
    dtype: str
    prefix: str = ""
    vision_parameters: int = 0
    vision_replicated: int = 0
    layer_embedding_size: int = 0
    architecture: str = ""
    embeds_everywhere: bool = False
    has_heads_everywhere: bool = False


_VOCABULARY_MULTIPLE = 64


class ShardingError(EngineError):
    """A part of a model cannot be divided over that many GPUs."""


class Sharding(NamedTuple):
    """Tensor parallelism of `tp` GPUs, pipeline parallelism of `pp` stages, `dp` replicas of all but the experts.

    `expert_parallel` gives every GPU whole experts instead of parts of all.
    """

    model: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False

    def part(self, size: int, what: str) -> int:
        """Return one GPU's part of `size`. Raises ShardingError when tp does not divide it."""
        if size % self.tp:
            raise ShardingError(f"{self.model} has {size} {what}, which tp {self.tp} does not divide")
        return size // self.tp

    def kv_heads(self, heads: int) -> int:
        """Return the KV heads of one GPU: where GPUs outnumber heads, each holds a copy of one."""
        if heads < self.tp:
            if self.tp % heads:
                raise ShardingError(f"{self.model} has {heads} KV heads, which do not divide tp {self.tp}")
            return 1
        return self.part(heads, "KV heads")

    def vocabulary(self, size: int) -> int:
        """Return the rows of an embedding on one GPU; vLLM pads vocabularies to multiples of 64."""
        padded = -(-size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        return -(-padded // self.tp)

    def experts(self, experts: int, intermediate_size: int) -> tuple[int, int]:
        """Return how many experts one GPU holds, and their intermediate size there: replicas share the experts."""
        gpus = self.tp * self.dp
        if self.expert_parallel:
            return -(-experts // gpus), intermediate_size
        if intermediate_size % gpus:
            raise ShardingError(
                f"{self.model} has experts of width {intermediate_size}, which {gpus} GPUs do not divide"
            )
        return experts, intermediate_size // gpus


def stage_layers(num_layers: int, pp: int, model: str) -> Sequence[range]:
    """Return the layers of every pipeline stage as vLLM splits them.

    Layers that do not divide evenly go to the stages before the last, from the back, so that the last stage, which also
    has the output head, and where possible the first have fewest.
    """
    if pp > num_layers:
        raise ShardingError(f"{model} has {num_layers} layers, fewer than the {pp} pipeline stages")
    counts = [num_layers // pp] * pp
    for stage in range(2, num_layers % pp + 2):
        counts[-stage] += 1
    starts = [sum(counts[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
