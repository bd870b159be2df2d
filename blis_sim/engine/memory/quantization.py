"""Formats of the matrices of a checkpoint, by the rules that vLLM applies to its quantization config."""

import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys
from blis_sim.engine.memory.modules import (
    EXPERTS,
    FP8,
    HEAD,
    INT8,
    LINEAR,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    FormatOf,
    Module,
    WeightFormat,
    block_fp8,
    canonical,
    grouped_integers,
    ignores_exactly,
)
from blis_sim.engine.specs import Checkpoint

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
