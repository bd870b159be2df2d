"""From a deployment and the layers of its checkpoint to the operations of a step on one GPU, as vLLM shards them."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.operations import (
    AUTO,
    MARLIN,
    MXFP4_BY_MARLIN,
    AcrossRanks,
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Elementwise,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    Routing,
    SharedExpert,
    SparseLatentAttention,
    StepOperations,
    TokenOperation,
)
from blis_sim.engine.memory import weights as shapes
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.weights import (
    EXPERTS,
    DenseMLP,
    FeedForward,
    FormatOf,
    Layer,
    ModelShape,
    Module,
    Sharding,
    feed_forward_modules,
    mixer_modules,
    read_quantization,
)
from blis_sim.engine.specs import Checkpoint, ModelSpec

# Shapes of experts that Triton's kernels were tuned for in vLLM 0.11, by GPU and format of the weights.
#
# A shape is the experts of one GPU and their width there. They are the names of the files in `fused_moe/configs` of
# the wheel of vLLM 0.11.0. Kernels of other shapes run with a configuration by rule of thumb.

TUNED_IN_11: dict[tuple[str, str], frozenset[tuple[int, int]]] = {
    ("A100-SXM", "bfloat16"): frozenset(
        [
            (1, 1792),
            (1, 3584),
            (1, 7168),
            (1, 14336),
            (8, 1792),
            (8, 2048),
            (8, 3584),
            (8, 4096),
            (8, 7168),
            (16, 1344),
            (16, 1792),
            (16, 2688),
            (16, 3584),
            (16, 7168),
            (16, 14336),
            (64, 640),
            (64, 1280),
            (128, 192),
        ]
    ),
    ("H100", "bfloat16"): frozenset(
        [
            (1, 3072),
            (8, 1792),
            (8, 2048),
            (8, 3584),
            (8, 4096),
            (8, 7168),
            (16, 1024),
            (16, 1344),
            (16, 2688),
            (62, 256),
            (62, 512),
            (64, 320),
            (64, 640),
            (64, 1280),
            (72, 384),
            (72, 768),
            (128, 192),
            (128, 512),
            (256, 512),
            (512, 128),
            (512, 256),
            (512, 512),
        ]
    ),
    ("H100", "block fp8"): frozenset([(20, 2560), (40, 2560), (160, 640), (256, 128)]),
    ("H200", "bfloat16"): frozenset(
        [
            (8, 1792),
            (8, 2048),
            (8, 3584),
            (8, 4096),
            (8, 7168),
            (8, 14336),
            (64, 320),
            (64, 640),
            (64, 1280),
            (64, 2560),
            (128, 192),
            (128, 384),
            (128, 768),
            (512, 64),
            (512, 128),
            (512, 256),
            (512, 512),
        ]
    ),
    ("H200", "block fp8"): frozenset([(8, 2048), (128, 384), (128, 768), (256, 256), (384, 128)]),
    ("L40S", "bfloat16"): frozenset([(8, 3584)]),
}


FULL_PRECISION = "bfloat16"
_KEPT_DEPLOYMENTS = 64
_BYTES_PER_ACTIVATION, _BYTES_OF_SUM = 2, 4
_BYTES_PER_LOGIT = 46
"""Read and written to sample at a temperature. Logits are brought to 32 bits, divided, made probabilities, and divided
by random numbers that are drawn for it. Then the largest one is found."""
_NORM_OVER_GPUS = ("MiniMaxM2ForCausalLM",)
"""Architectures that norm queries and keys over all heads, for which GPUs exchange two sums per token."""
_ROUTERS_OF_32_BITS = ("MiniMaxM2ForCausalLM",)
"""Architectures that bring what their router reads to 32 bits."""
_NORMED_HEADS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", *_NORM_OVER_GPUS)
_WITH_SINKS = ("GptOssForCausalLM",)
_MIN_MEASURED_ROWS = 64
"""Narrower multiplications were not measured; they take as long."""
_NOT_MEASURED = {
    shapes.Attention: "sparse attention with its own heads",
    shapes.LatentAttention: "sparse attention without an indexer of its own",
    shapes.Mamba2: "Mamba-2",
    shapes.KimiDelta: "Kimi delta attention",
}


class ShardedModel(NamedTuple):
    """A model as it is deployed: sharded, with the formats of its matrices and the type of its KV cache."""

    shape: ModelShape
    sharding: Sharding
    format_of: FormatOf
    kv_dtype: str
    runs_marlin: bool = False
    tuned_as_in_11_on: str = ""


def step_operations(sharded: ShardedModel) -> StepOperations:
    """Return the operations of a step. Raises EngineError for a kind of layer that no table has."""
    per_token: Counter[TokenOperation] = Counter()
    attention: Counter[AttentionOperation] = Counter()
    for index, layer in enumerate(sharded.shape.layers):
        prefix = f"layers.{index}."
        per_token.update(_token_operations(sharded, layer, prefix))
        if layer.mixer is not None:
            attention[_attention(sharded, layer.mixer, prefix)] += 1
    hidden, sharding = sharded.shape.hidden_size, sharded.sharding
    per_token[Elementwise(2 * hidden * _BYTES_PER_ACTIVATION)] += 1  # the embedding
    if sharding.tp > 1:
        per_token[AllReduce(hidden, sharding.tp)] += 1
    return StepOperations(
        per_token=tuple(per_token.items()),
        attention=tuple(attention.items()),
        head=Matmul(sharding.vocabulary(sharded.shape.vocab_size), hidden, FULL_PRECISION),
        sampler=Elementwise(_BYTES_PER_LOGIT * sharded.shape.vocab_size),
        num_layers=len(sharded.shape.layers),
    )


def _token_operations(sharded: ShardedModel, layer: Layer, prefix: str) -> Iterator[TokenOperation]:
    hidden, tp = sharded.shape.hidden_size, sharded.sharding.tp
    if layer.mixer is not None:
        yield Elementwise(4 * hidden * _BYTES_PER_ACTIVATION)  # adding the residual, and the norm
        for module in mixer_modules(layer.mixer, hidden, prefix, sharded.sharding):
            yield from _matmuls(sharded, module)
        yield from _before_attention(sharded, layer.mixer)
        if tp > 1:
            yield AllReduce(hidden, tp)
    for part in layer.feed_forward:
        yield Elementwise(4 * hidden * _BYTES_PER_ACTIVATION)
        yield from _feed_forward(sharded, part, prefix)
        ranks = 1 if isinstance(part, DenseMLP) else sharded.sharding.dp
        if ranks > 1:  # tokens are gathered from all ranks, and what experts make of them is summed up and shared out
            yield AcrossRanks(AllReduce(hidden, tp * ranks), ranks)
        elif tp > 1:
            yield AllReduce(hidden, tp)


def _before_attention(sharded: ShardedModel, mixer: shapes.Mixer) -> Iterator[TokenOperation]:
    """Yield what happens to queries and keys: rotation, and a norm over all heads where a model has one.

    The values of a gated delta net are normed and gated.
    """
    if isinstance(mixer, shapes.GatedDeltaNet):
        values = sharded.sharding.part(mixer.value_heads, "linear value heads") * mixer.value_head_size
        yield Elementwise(3 * values * _BYTES_PER_ACTIVATION)
        return
    if not isinstance(mixer, shapes.Attention):
        return
    sharding, architecture = sharded.sharding, sharded.shape.architecture
    heads = sharding.part(mixer.heads, "attention heads") + sharding.kv_heads(mixer.kv_heads)
    both_ways = Elementwise(2 * heads * mixer.head_size * _BYTES_PER_ACTIVATION)
    yield both_ways  # the compiler makes norms of single heads part of this kernel
    if architecture in _NORM_OVER_GPUS:
        yield both_ways
        yield Elementwise(heads * mixer.head_size * _BYTES_PER_ACTIVATION)
        if sharding.tp > 1:
            yield AllReduce(2 * _BYTES_OF_SUM // _BYTES_PER_ACTIVATION, sharding.tp)


def _feed_forward(sharded: ShardedModel, part: FeedForward, prefix: str) -> Iterator[TokenOperation]:
    hidden, sharding = sharded.shape.hidden_size, sharded.sharding
    modules = list(feed_forward_modules(part, hidden, prefix, sharding))
    if isinstance(part, DenseMLP):
        for module in modules:
            yield from _matmuls(sharded, module)
        yield Elementwise((3 if part.has_gate else 2) * part.intermediate_size // sharding.tp * _BYTES_PER_ACTIVATION)
        return
    gpus = sharding.tp * sharding.dp
    yield Matmul(part.experts, hidden, FULL_PRECISION)  # the router
    if sharded.shape.architecture in _ROUTERS_OF_32_BITS:
        yield Elementwise((_BYTES_OF_SUM + _BYTES_PER_ACTIVATION) * hidden)
    for module in modules:
        if module.role == EXPERTS:
            weights = _weights(sharded, module)
            if weights == "mxfp4" and sharded.runs_marlin:
                weights = MXFP4_BY_MARLIN
            yield Routing(part.experts, weights)
            experts = Experts(
                hidden_size=part.latent_size or hidden,
                inner_size=part.intermediate_size,
                experts=part.experts,
                chosen=part.experts_per_token,
                tp=1 if sharding.expert_parallel else gpus,
                ep=gpus if sharding.expert_parallel else 1,
                weights=weights,
                has_gate=part.has_gate,
            )
            experts = experts._replace(is_tuned=_is_tuned(experts, sharded.tuned_as_in_11_on))
            yield experts if sharding.dp == 1 else AcrossRanks(experts, sharding.dp)
        else:
            for matmul in _matmuls(sharded, module):
                yield SharedExpert(matmul) if part.shared_name in module.name else matmul


def _is_tuned(experts: Experts, gpu: str) -> bool:
    """Return whether a release has a configuration of the kernel; one after 0.16, without a `gpu`, has all."""
    shapes_of_gpu = TUNED_IN_11.get((gpu, experts.weights))
    return shapes_of_gpu is None or (experts.experts // experts.ep, experts.inner_size // experts.tp) in shapes_of_gpu


def _matmuls(sharded: ShardedModel, module: Module) -> Iterator[Matmul]:
    for rows, columns in module.matrices:
        yield Matmul(max(rows, _MIN_MEASURED_ROWS), columns, _weights(sharded, module))


def _weights(sharded: ShardedModel, module: Module) -> str:
    found = sharded.format_of(module)
    return FULL_PRECISION if found is None or found.name == "unquantized" else found.name


def _attention(sharded: ShardedModel, mixer: shapes.Mixer, prefix: str) -> AttentionOperation:
    sharding, shape = sharded.sharding, sharded.shape
    if isinstance(mixer, shapes.Attention) and not mixer.index_heads:
        return HeadAttention(
            heads=sharding.part(mixer.heads, "attention heads"),
            kv_heads=sharding.kv_heads(mixer.kv_heads),
            head_size=mixer.head_size,
            window_tokens=mixer.window_tokens or mixer.chunk_tokens,
            kv_dtype=sharded.kv_dtype,
            has_norm=shape.architecture in _NORMED_HEADS,
            has_sinks=shape.architecture in _WITH_SINKS,
        )
    if isinstance(mixer, shapes.LatentAttention) and not mixer.is_sparse:
        modules = list(mixer_modules(mixer, shape.hidden_size, prefix, sharding))
        return LatentAttention(
            heads=sharding.part(mixer.heads, "attention heads"),
            all_heads=mixer.heads,
            kv_dtype=sharded.kv_dtype,
            weights=_weights(sharded, modules[0]),
            projections=tuple(matmul for module in modules for matmul in _matmuls(sharded, module)),
        )
    if isinstance(mixer, shapes.LatentAttention) and mixer.has_indexer:
        modules = list(mixer_modules(mixer, shape.hidden_size, prefix, sharding))
        return SparseLatentAttention(
            architecture=shape.architecture,
            heads=sharding.part(mixer.heads, "attention heads"),
            kv_dtype=sharded.kv_dtype,
            projections=tuple(matmul for module in modules for matmul in _matmuls(sharded, module)),
        )
    if isinstance(mixer, shapes.GatedDeltaNet):
        return DeltaNet(
            hidden_size=shape.hidden_size,
            key_heads=sharding.part(mixer.key_heads, "linear key heads"),
            key_head_size=mixer.key_head_size,
            value_heads=sharding.part(mixer.value_heads, "linear value heads"),
            value_head_size=mixer.value_head_size,
            conv_kernel=mixer.conv_kernel,
        )
    kind = _NOT_MEASURED.get(type(mixer), "attention of another kind")
    raise EngineError(f"{shape.model} has layers of {kind}, which the kernels model cannot time")


class KernelPlacement(NamedTuple):
    """The properties of a deployment that decide which kernels run, beside the model and the GPU."""

    tp: int = 1
    expert_parallel: bool = False
    kv_cache_dtype: str = "auto"
    quantization: str = ""
    dtype: str = "auto"
    moe_backend: str = AUTO
    """Kernels of the experts, as vLLM calls them; only those of MXFP4 are known by two names."""
    eager: bool = False
    """Whether kernels are started one by one, without CUDA graphs."""
    has_triton_experts: bool = True
    """Whether Triton's kernels run experts in MXFP4 unless others are requested; without them Marlin's do."""
    tuned_as_in_11_on: str = ""
    """The GPU, where vLLM has no more configurations of kernels of experts than 0.11; empty with later releases."""
    dp: int = 1
    """Data-parallel ranks that share experts."""
    composes_ahead: bool = True
    """Whether the host works on a step while the one before it runs."""
    latent_host_us: int = 0
    """Work of the host for a layer of latent attention that no kernel hides."""

    @property
    def runs_marlin(self) -> bool:
        """Whether experts in MXFP4 run by Marlin's kernels."""
        return self.moe_backend == MARLIN or (self.moe_backend == AUTO and not self.has_triton_experts)


def operations_of(model: ModelSpec, placement: KernelPlacement) -> StepOperations:
    """Return the operations of a step. Raises EngineError for what cannot be read from the checkpoint."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to read its layers from")
    return _operations_of(model.checkpoint, model.name, placement)


@lru_cache(maxsize=_KEPT_DEPLOYMENTS)
def _operations_of(checkpoint: Checkpoint, model: str, placement: KernelPlacement) -> StepOperations:
    quantization = read_quantization(checkpoint.config, checkpoint.hf_quant_config, model, placement.quantization)
    kv_dtype = quantization.kv_cache_dtype if placement.kv_cache_dtype == "auto" else placement.kv_cache_dtype
    sharded = ShardedModel(
        shape=read_model(checkpoint.config, model, placement.dtype),
        sharding=Sharding(model=model, tp=placement.tp, dp=placement.dp, expert_parallel=placement.expert_parallel),
        format_of=quantization.format_of,
        kv_dtype="fp8" if kv_dtype.startswith("fp8") else "bfloat16",
        runs_marlin=placement.runs_marlin,
        tuned_as_in_11_on=placement.tuned_as_in_11_on,
    )
    return step_operations(sharded)
