"""Which matrices of a checkpoint are quantised, and how, by the rules that vLLM applies to its quantization config."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.compressed_tensors import compressed_tensors_formats
from blis_sim.engine.memory.config_keys import ConfigKeys
from blis_sim.engine.memory.modelopt import modelopt_formats
from blis_sim.engine.memory.modules import EXPERTS, LINEAR, FormatOf, Module
from blis_sim.engine.memory.names import canonical, ignores_exactly
from blis_sim.engine.memory.weight_formats import (
    FP8,
    INT8,
    MXFP4,
    MXFP8,
    NF4,
    WeightFormat,
    block_fp8,
    grouped_integers,
)
from blis_sim.engine.model_spec import Checkpoint

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
    if requested and not _agrees(requested, method):
        raise EngineError(f"--quantization must be {method} or left out for {model}, got {requested!r}")
    keys = ConfigKeys(f"{model}: quantization_config", declared)
    return Quantization(method, _kv_cache_dtype(declared, method), _formats(keys, method), has_nvfp4)


def refused_quantization(checkpoint: Checkpoint, requested: str) -> str:
    """Return why --quantization cannot be applied to a checkpoint, empty when it can."""
    try:
        method = _method(_declared(checkpoint.config, checkpoint.hf_quant_config, "the model"))
    except EngineError:
        return ""
    if method and requested and not _agrees(requested, method):
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


def _agrees(requested: str, method: str) -> bool:
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
