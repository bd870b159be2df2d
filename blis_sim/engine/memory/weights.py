"""The parts of a model and their division over GPUs: modules, formats of a checkpoint, and bytes by pipeline stage."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from math import gcd
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys
from blis_sim.engine.specs import Checkpoint

# The parts of a model that weights and KV cache depend on, and their division over GPUs.


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

    Layers that do not divide evenly go to the stages before the last, from the back. The last stage, which also has the
    output head, and where possible the first have fewest.
    """
    if pp > num_layers:
        raise ShardingError(f"{model} has {num_layers} layers, fewer than the {pp} pipeline stages")
    counts = [num_layers // pp] * pp
    for stage in range(2, num_layers % pp + 2):
        counts[-stage] += 1
    starts = [sum(counts[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


# The matrices of a model as one GPU holds them: names that vLLM gives their modules, and their storage.


class WeightFormat(NamedTuple):
    """Storage of one matrix.

    `group_columns` inputs and `group_rows` outputs share one scale of `scale_bytes`; 0 columns means that the scales
    are too few to count. With `has_zero_points` every scale has a zero point of `bits` beside it.
    """

    name: str
    bits: int
    group_columns: int = 0
    group_rows: int = 1
    scale_bytes: float = 0.0
    has_zero_points: bool = False

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix with its scales."""
        weights = -(-rows * columns * self.bits // 8)
        if not self.group_columns:
            return weights
        groups = -(-rows // self.group_rows) * -(-columns // self.group_columns)
        zero_points = groups * self.bits // 8 if self.has_zero_points else 0
        return weights + int(groups * self.scale_bytes) + zero_points


FP8 = WeightFormat("fp8", 8)
INT8 = WeightFormat("int8", 8)
MXFP8 = WeightFormat("mxfp8", 8, 32, 1, 1.0)
NVFP4 = WeightFormat("nvfp4", 4, 16, 1, 1.0)
MXFP4 = WeightFormat("mxfp4", 4, 32, 1, 1.0)
NF4 = WeightFormat("nf4", 4, 64, 1, 1.0)


def plain(bytes_per_weight: int) -> WeightFormat:
    """Return the format of weights that are not quantised."""
    return WeightFormat("unquantized", 8 * bytes_per_weight)


def block_fp8(rows: int, columns: int) -> WeightFormat:
    """Return FP8 with one 32-bit scale per block of `rows` by `columns` weights."""
    return WeightFormat("block fp8", 8, columns, rows, 4.0)


def grouped_integers(bits: int, group_size: int, has_zero_points: bool) -> WeightFormat:
    """Return integers of `bits` with a 16-bit scale per group of inputs, per output where `group_size` is 0."""
    columns = group_size if group_size > 0 else 2**30
    return WeightFormat(f"int{bits}", bits, columns, 1, 2.0, has_zero_points)


LINEAR = "linear"
EXPERTS = "experts"
HEAD = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module with matrices: `count` of each of `matrices`, rows (outputs) by columns (inputs).

    `name` is the dotted name below the decoder, such as `layers.0.self_attn.qkv_proj`; `shards` are the names of the
    checkpoint's matrices that vLLM merges into it. `other_parameters` are biases, which are never quantised.
    """

    name: str
    matrices: tuple[tuple[int, int], ...]
    role: str = LINEAR
    shards: tuple[str, ...] = ()
    count: int = 1
    other_parameters: int = 0

    def shard_names(self) -> tuple[str, ...]:
        """Return the dotted names of the checkpoint's matrices."""
        parent = self.name.rpartition(".")[0]
        return tuple(f"{parent}.{shard}" for shard in self.shards) or (self.name,)


FormatOf = Callable[[Module], WeightFormat | None]
"""From a module to its format; None for full precision."""


_PARENTS = (
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "model.",
)


def canonical(name: str) -> str:
    """Return a name or a pattern without the parent of the decoder."""
    for parent in _PARENTS:
        if name.startswith(parent):
            return name[len(parent) :]
    return name


def ignores_exactly(module: Module, ignored: Collection[str]) -> bool:
    """Return whether a list of full names ignores a module: experts when one of them is listed, else all shards."""
    if module.name in ignored:
        return True
    if module.role == EXPERTS:
        return any(module.name in name for name in ignored)
    return all(name in ignored for name in module.shard_names())


# Formats of the matrices of a checkpoint, by the rules that vLLM applies to its quantization config.

_MODULE_CLASSES = ("Linear", "FusedMoE", "RoutedExperts")


def compressed_tensors_formats(keys: ConfigKeys) -> FormatOf:
    """Return the format of every module: that of the first group whose targets name it, unless it is ignored."""
    ignored = [str(item) for item in keys.items("ignore")]
    groups = [
        (ConfigKeys(f"{keys.model}: config_groups", group), keys.text("format"))
        for _, group in sorted(keys.object("config_groups").keys.items())
        if isinstance(group, Mapping)
    ]
    formats = [(group.items("targets"), _group_format(group, fallback)) for group, fallback in groups]

    def format_of(module: Module) -> WeightFormat | None:
        if any(_names(module, pattern) for pattern in ignored):
            return None
        for targets, weight_format in formats:
            is_class = module.role != HEAD and any(target in _MODULE_CLASSES for target in targets)
            if is_class or any(_names(module, str(target)) for target in targets):
                return weight_format
        return None

    return format_of


def _names(module: Module, pattern: str) -> bool:
    """Return whether a name, or a regular expression after `re:`, means the module or its shards."""
    names = (module.name, *module.shard_names())
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error:
            return False
        return any(expression.match(f"model.{name}") or expression.match(name) for name in names)
    return canonical(pattern) in names


def _group_format(group: ConfigKeys, fallback: str) -> WeightFormat:
    weights = group.object("weights")
    kind, bits = weights.text("type", "int"), weights.count("num_bits", default=16)
    packing = group.text("format", fallback)
    if kind == "float":
        return _float_format(group.model, bits, packing, weights)
    if bits == 8 and "pack" not in packing:
        return INT8
    group_size = weights.count("group_size", default=0) if weights.text("strategy") == "group" else 0
    return grouped_integers(bits, group_size, not weights.flag("symmetric", True))


def _float_format(model: str, bits: int, packing: str, weights: ConfigKeys) -> WeightFormat:
    if bits == 4:
        return MXFP4 if "mxfp4" in packing or weights.count("group_size", default=16) == 32 else NVFP4
    if bits != 8:
        raise EngineError(f"{model}: num_bits of float weights must be 4 or 8, got {bits}")
    block: list[Any] = weights.items("block_structure")
    return block_fp8(int(block[0]), int(block[1])) if len(block) == 2 else FP8


_FORMATS: Mapping[str, WeightFormat] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": block_fp8(128, 128),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MXFP8,
}


def modelopt_formats(keys: ConfigKeys, method: str) -> FormatOf:
    """Return the format of every module of a ModelOpt checkpoint. The output head is quantised unless excluded."""
    inner = keys.object("quantization") if keys.has("quantization") else keys
    excluded = _Exclusions(inner.items("exclude_modules") or inner.items("ignore"))
    if method == "modelopt_mixed":
        algorithms = _algorithms(inner.object("quantized_layers").keys, keys.model)
        return lambda module: None if excluded.matches(module) else _mixed_format(algorithms, module)
    algorithm = inner.text("quant_algo").upper()
    if algorithm not in _FORMATS:
        raise EngineError(f"{keys.model}: quant_algo must be one of {', '.join(_FORMATS)}, got {algorithm!r}")
    return lambda module: None if excluded.matches(module) else _FORMATS[algorithm]


class _Exclusions:
    """A list of names, parts of names and wildcards, any of which excludes a module."""

    def __init__(self, patterns: list[Any]) -> None:
        names = [canonical(str(pattern)) for pattern in patterns]
        # A trailing star without a dot stands for the module itself and for all below it.
        self.parts = frozenset(name[:-1] if name.endswith("*") and not name.endswith(".*") else name for name in names)
        wildcards = [name for name in names if any(character in name for character in "*?[")]
        self.wildcard = re.compile("|".join(translate(name) for name in wildcards)) if wildcards else None

    def matches(self, module: Module) -> bool:
        if not self.parts:
            return False
        if ignores_exactly(module, self.parts) or any(part in module.name for part in self.parts):
            return True
        return self.wildcard is not None and self.wildcard.match(module.name) is not None


def _algorithms(layers: Mapping[str, Any], model: str) -> dict[str, str]:
    """Return the algorithm of every listed name, and of every parent of one where the parent itself has none."""
    algorithms: dict[str, str] = {}
    parents: dict[str, str] = {}
    for name, recipe in layers.items():
        algorithm = str(recipe.get("quant_algo", "") if isinstance(recipe, Mapping) else "").upper()
        if algorithm not in _FORMATS:
            raise EngineError(f"{model}: quant_algo of {name} must be one of {', '.join(_FORMATS)}, got {algorithm!r}")
        short = canonical(name)
        algorithms[short] = algorithm
        parent = short.rpartition(".")[0]
        while parent and parent not in parents:
            parents[parent] = algorithm
            parent = parent.rpartition(".")[0]
    return {**parents, **algorithms}


def _mixed_format(algorithms: Mapping[str, str], module: Module) -> WeightFormat | None:
    names = [module.name, *module.shard_names()]
    if module.role == EXPERTS:
        names.append(module.name.removesuffix(".experts"))
    algorithm = next((algorithms[name] for name in names if name in algorithms), None)
    return _FORMATS[algorithm] if algorithm is not None else None


ONLINE_METHODS: Mapping[str, WeightFormat] = {
    "fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_block": block_fp8(128, 128),
    "mxfp8": MXFP8,
    "experts_int8": INT8,
    "int8_per_channel_weight_only": INT8,
    "bitsandbytes": NF4,
}
"""Values of --quantization with which vLLM quantises a checkpoint of full precision while it loads it."""
CHECKPOINT_METHODS = (
    "fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "mxfp4", "gpt_oss_mxfp4",
    "compressed-tensors", "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "bitsandbytes",
)  # fmt: skip
"""Values of `quant_method` in a checkpoint that are modelled."""

_MODELOPT_KV_DTYPES = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "nvfp4": "nvfp4"}


class Quantization(NamedTuple):
    """Quantization by a checkpoint or --quantization. `method` is empty for full precision.

    `kv_cache_dtype` is what the checkpoint declares for `--kv-cache-dtype auto`, `auto` where it declares nothing.
    """

    method: str
    kv_cache_dtype: str
    format_of: FormatOf
    has_nvfp4: bool = False


def read_quantization(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, model: str, requested: str
) -> Quantization:
    """Return the quantization of a checkpoint. `requested` is the value of --quantization, empty when not given.

    Raises EngineError for a method that is not modelled, or a request that contradicts the checkpoint.
    """
    declared = _declared(config, hf_quant_config, model)
    has_nvfp4 = "nvfp4" in f"{declared} {hf_quant_config}".lower() or _is_nvfp4_compressed(declared)
    method = _method(declared)
    if not method:
        online = ONLINE_METHODS.get(requested)
        if requested and requested != "none" and online is None:
            raise EngineError(
                f"--quantization must be one of {', '.join(ONLINE_METHODS)} for {model}, which has no "
                f"quantization_config, got {requested!r}"
            )
        if online is None:
            return Quantization("", "auto", lambda module: None, has_nvfp4)
        return Quantization(requested, "auto", _online(requested, online), has_nvfp4)
    if method not in CHECKPOINT_METHODS:
        known = ", ".join(CHECKPOINT_METHODS)
        raise EngineError(f"{model}: quant_method must be one of {known} to count weights, got {method!r}")
    if requested and not _is_same_method(requested, method):
        raise EngineError(f"--quantization must be {method} or left out for {model}, got {requested!r}")
    keys = ConfigKeys(f"{model}: quantization_config", declared)
    return Quantization(method, _kv_cache_dtype(declared, method), _formats(keys, method), has_nvfp4)


def refused_quantization(checkpoint: Checkpoint, requested: str) -> str:
    """Return why --quantization cannot be applied to a checkpoint, empty when it can."""
    try:
        method = _method(_declared(checkpoint.config, checkpoint.hf_quant_config, "the model"))
    except EngineError:
        return ""
    if method and requested and not _is_same_method(requested, method):
        return f"the checkpoint is quantised with {method}"
    if not method and requested not in ("", "none", *ONLINE_METHODS):
        return f"weights are those of the checkpoint; vLLM quantises with {', '.join(ONLINE_METHODS)} while loading"
    return ""


def _declared(config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, model: str) -> Mapping[str, Any]:
    """Return the quantization config: of config.json, else of hf_quant_config.json, else of `text_config`."""
    text = config.get("text_config")
    for candidate in (
        config.get("quantization_config"),
        hf_quant_config if config.get("quantization_config") is None else None,
        config.get("compression_config"),
        text.get("quantization_config") if isinstance(text, Mapping) else None,
    ):
        if candidate is None:
            continue
        if not isinstance(candidate, Mapping):
            raise EngineError(f"{model}: quantization_config must be an object, got {type(candidate).__name__}")
        return candidate
    return {}


def _method(declared: Mapping[str, Any]) -> str:
    """Return vLLM's name of the method. A config of ModelOpt without its producer counts as full precision."""
    producer = declared.get("producer")
    inner = declared.get("quantization")
    is_modelopt = isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    if is_modelopt and isinstance(inner, Mapping):
        return _modelopt_method(inner.get("quant_algo"))
    method = str(declared.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    if method == "modelopt":
        return _modelopt_method((inner if isinstance(inner, Mapping) else declared).get("quant_algo"))
    if method == "compressed-tensors" and declared.get("format") == "mxfp4-pack-quantized":
        return "mxfp4"
    return method


def _modelopt_method(algorithm: object) -> str:
    names = {"NVFP4": "modelopt_fp4", "W4A16_NVFP4": "modelopt_fp4", "MXFP8": "modelopt_mxfp8"}
    name = str(algorithm or "").upper()
    return "modelopt_mixed" if name == "MIXED_PRECISION" else names.get(name, "modelopt")


def _is_same_method(requested: str, method: str) -> bool:
    families = ("modelopt", "awq", "gptq", "mxfp4", "fp8", "bitsandbytes", "compressed-tensors")
    return any(family in requested and family in method for family in families)


def _kv_cache_dtype(declared: Mapping[str, Any], method: str) -> str:
    """Return what the checkpoint declares for the KV cache."""
    inner = declared.get("quantization")
    places = [place for place in (inner, declared) if isinstance(place, Mapping)]
    scheme = next(
        (place[key] for key in ("kv_cache_scheme", "kv_cache_quant_algo") for place in places if place.get(key)), None
    )
    if method.startswith("modelopt"):
        if isinstance(scheme, Mapping):
            scheme = {8: "fp8", 4: "nvfp4"}.get(scheme.get("num_bits", 0)) if scheme.get("type") == "float" else None
        return _MODELOPT_KV_DTYPES.get(str(scheme).lower(), "auto")
    return "fp8" if method == "compressed-tensors" and isinstance(scheme, Mapping) else "auto"


def _is_nvfp4_compressed(declared: Mapping[str, Any]) -> bool:
    return "nvfp4" in str(declared.get("format") or "").lower()


def _online(method: str, weight_format: WeightFormat) -> FormatOf:
    roles = (EXPERTS,) if method == "experts_int8" else (LINEAR, EXPERTS)
    return lambda module: weight_format if module.role in roles else None


def _formats(keys: ConfigKeys, method: str) -> FormatOf:
    readers: Mapping[str, Callable[[ConfigKeys], FormatOf]] = {
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "mxfp4": _mxfp4,
        "gpt_oss_mxfp4": _mxfp4,
        "compressed-tensors": compressed_tensors_formats,
        "bitsandbytes": _bitsandbytes,
    }
    if method.startswith("modelopt"):
        return modelopt_formats(keys, method)
    return readers.get(method, _integers)(keys)


def _ignored(keys: ConfigKeys, *names: str) -> frozenset[str]:
    found = next((items for name in names if (items := keys.items(name))), [])
    return frozenset(canonical(str(item)) for item in found)


def _fp8(keys: ConfigKeys) -> FormatOf:
    ignored = _ignored(keys, "ignored_layers", "modules_to_not_convert")
    block = keys.items("weight_block_size")
    weight_format = block_fp8(int(block[0]), int(block[1])) if len(block) == 2 else FP8

    def format_of(module: Module) -> WeightFormat | None:
        is_quantised = module.role in (LINEAR, EXPERTS) and not ignores_exactly(module, ignored)
        return weight_format if is_quantised else None

    return format_of


def _mxfp4(keys: ConfigKeys) -> FormatOf:
    """Return MXFP4 for the experts; the attention and the shared experts of such checkpoints stay in 16 bits."""
    return lambda module: MXFP4 if module.role == EXPERTS else None


def _bitsandbytes(keys: ConfigKeys) -> FormatOf:
    weight_format = INT8 if keys.flag("load_in_8bit") else NF4
    skipped = _ignored(keys, "llm_int8_skip_modules")
    return lambda module: (
        weight_format
        if module.role in (LINEAR, EXPERTS) and not any(part in module.name.split(".") for part in skipped)
        else None
    )


def _integers(keys: ConfigKeys) -> FormatOf:
    """Return the integers of AWQ and GPTQ: all matrices but those of `modules_to_not_convert`."""
    bits = keys.count("bits", "w_bit", default=4)
    group_size = keys.keys.get("group_size", keys.keys.get("q_group_size", 128))
    skipped = _ignored(keys, "modules_to_not_convert")
    has_zero_points = keys.flag("zero_point", True) or not keys.flag("sym", True)
    weight_format = grouped_integers(bits, group_size if isinstance(group_size, int) else 128, has_zero_points)
    return lambda module: (
        weight_format if module.role in (LINEAR, EXPERTS) and not any(part in module.name for part in skipped) else None
    )


# Bytes of a model's parameters on one GPU of every pipeline stage, as vLLM holds them.


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
    """Return experts in MXFP4 as Marlin's kernels take them: inputs in multiples of 256, the inner width of 128.

    Triton's take multiples of 64 on Hopper, in `mxfp4_round_up_hidden_size_and_intermediate_size` of vLLM. The KV cache
    of a recorded fleet was as small as beside the padding, for a reason that is not known.
    """
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


# Weights in blocks of FP8 that cannot be divided over GPUs, which vLLM refuses when it creates them.
#
# Facts: vllm/model_executor/layers/quantization/utils/fp8_utils.py, `validate_fp8_block_shape` and
# `validate_fp8_block_shape_moe`; layers/fused_moe/oracle/fp8.py, `refine_fp8_moe_block_shape`.

_CHECKED_METHODS = ("fp8", "compressed-tensors")
_REFINED_METHOD = "fp8"
_LEAST_REFINED_BLOCK = 32
_BY_ROWS = ("o_proj", "out_proj", "down_proj")
"""Matrices whose inputs are divided over GPUs."""
_BY_COLUMNS = ("q_b_proj", "kv_b_proj")
"""Matrices whose outputs are divided and that are not merged of several; merged ones may end within a block."""


def check_block_shards(
    shape: ModelShape, method: str, format_of: FormatOf, sharding: Sharding, *, refines: bool
) -> None:
    """Raise ShardingError, in vLLM's words, for weights whose blocks a GPU would hold a part of.

    With `refines` scales of experts are repeated for smaller blocks where these divide evenly.
    """
    if method not in _CHECKED_METHODS:
        return
    for module, blocks in _blocked_modules(shape, format_of, sharding):
        if module.role == EXPERTS:
            problem = _problem_of_experts(module, blocks, sharding.tp, refines and method == _REFINED_METHOD)
        else:
            problem = _problem(module, blocks) if sharding.tp > 1 else ""
        if problem:
            raise ShardingError(f"{sharding.model} with tp {sharding.tp}: {problem}")


def _blocked_modules(
    shape: ModelShape, format_of: FormatOf, sharding: Sharding
) -> Iterator[tuple[Module, WeightFormat]]:
    for index, layer in enumerate(shape.layers):
        for module in layer_modules(shape, layer, f"layers.{index}.", sharding):
            if module.matrices and module.role in (LINEAR, EXPERTS):
                found = format_of(module)
                if found is not None and found.name == "block fp8":
                    yield module, found


def _problem_of_experts(module: Module, blocks: WeightFormat, tp: int, refines: bool) -> str:
    (_, hidden), (_, width) = module.matrices
    rows, columns = blocks.group_rows, blocks.group_columns
    if refines and gcd(rows, columns, width, hidden) >= _LEAST_REFINED_BLOCK:
        return ""
    if width % rows:
        return (
            f"The output_size of gate's and up's weight = {width} is not divisible by weight quantization "
            f"block_n = {rows}."
        )
    if tp > 1 and width % columns:
        return f"The input_size of down's weight = {width} is not divisible by weight quantization block_k = {columns}."
    return ""


def _problem(module: Module, blocks: WeightFormat) -> str:
    name = module.name.rpartition(".")[2]
    ((rows, columns),) = module.matrices
    if name in _BY_ROWS and columns % blocks.group_columns:
        return (
            f"Weight input_size_per_partition = {columns} is not divisible by weight quantization "
            f"block_k = {blocks.group_columns}."
        )
    if name in _BY_COLUMNS and rows % blocks.group_rows:
        return (
            f"Weight output_partition_size = {rows} is not divisible by weight quantization "
            f"block_n = {blocks.group_rows}."
        )
    return ""
