"""vLLM's refusals of a model folder, in its words: vLLM's library of configurations checks a `config.json` first."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_sim.options.text import load_json

QUANTIZATION_METHODS = (
    *("awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8"),
    *("modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors"),
    *("experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online"),
    *("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token"),
    *("mxfp8",),
)
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
HEADS_DIVIDE_HIDDEN_SIZE = frozenset(
    {
        *("arcee", "aria_text", "cwm", "deepseek_v2", "eurobert", "gemma2", "gemma3_text", "hrm_text", "hyperclovax"),
        *("jais2", "llama", "minicpm3", "vaultgemma"),
    }
)
"""Model types whose configuration must have a hidden size that is a multiple of the number of heads."""


def folder_config(model: str) -> Mapping[str, Any] | None:
    """Return the object in the `config.json` of a model folder; None without one."""
    try:
        config = load_json((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def pooling_conversion(model: str) -> str:
    """Return what a model folder pools to without a flag, by the name of its class: embed, classify, or nothing."""
    config = folder_config(model)
    if config is None:
        return ""
    if _has_pooling_module(model):
        return "embed"
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        for suffix, conversion in _CONVERSIONS:
            if str(name).endswith(suffix):
                return conversion
    return ""


def _has_pooling_module(model: str) -> bool:
    """Whether the folder is one of sentence-transformers, whose modules are listed in a file."""
    try:
        modules = load_json((Path(model) / "modules.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    found = modules if isinstance(modules, list) else []
    return any(isinstance(each, dict) and str(each.get("type")).endswith(".Pooling") for each in found)


_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_CLASSIFYING = (
    *("ForSequenceClassification", "ForTokenClassification", "ForAudioClassification", "ForImageClassification"),
    *("ForVideoClassification", "ClassificationModel"),
)
_CONVERSIONS = (
    *((suffix, "") for suffix in _GENERATING),
    *((suffix, "classify") for suffix in _CLASSIFYING),
    *((suffix, "embed") for suffix in ("ForTextEncoding", "ForRewardModeling", "Model")),
)
"""Endings of class names in vLLM's order, and what models of these classes pool to."""


def folder_problems(model: str) -> Iterator[str]:
    """Yield a sentence for each reason why vLLM would not start with the model folder; none for another model."""
    config = folder_config(model)
    if config is None:
        return
    if "model_type" not in config:
        yield f"Unrecognized model in {model}. Should have a `model_type` key in its config.json."
    yield from _heads(config)
    for key in QUANTIZATION_KEYS:
        settings = config.get(key)
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        if isinstance(method, str) and method.lower() not in QUANTIZATION_METHODS:
            yield unknown_quantization(method.lower())
    if config.get("max_position_embeddings") == 0:
        yield "max_model_len must be a positive integer, got int: 0. Example: max_model_len=2048"


def unknown_quantization(method: str) -> str:
    """Return vLLM's sentence for a quantization method that does not exist."""
    return f"Unknown quantization method: {method}. Must be one of {list(QUANTIZATION_METHODS)}."


def _heads(config: Mapping[str, Any]) -> Iterator[str]:
    size, heads = config.get("hidden_size"), config.get("num_attention_heads")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in HEADS_DIVIDE_HIDDEN_SIZE or not isinstance(size, int):
        return
    if isinstance(heads, int) and heads > 0 and size % heads:
        yield f"The hidden size ({size}) is not a multiple of the number of attention heads ({heads})."
