"""The model that a name stands for: a folder, a row of the catalogue, or a stand-in; and the tasks of its class."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue.entries import has_model, is_path, model_entry, stand_in_model
from blis_sim.engine.latency.catalogue.files import config_path
from blis_sim.engine.latency.catalogue.reader import default_deployment
from blis_sim.options import StartError
from blis_sim.options.files import read_text
from blis_sim.options.text import load_json

D = TypeVar("D", bound=DeploymentOptions)

DEFAULT_GPU = "H100"
"""The GPU of a model without a default deployment."""


def is_known(options: DeploymentOptions) -> bool:
    """Whether the sizes of the model are known, from a folder or the catalogue."""
    return _has_config(options) or has_model(options.model)


def _has_config(options: DeploymentOptions) -> bool:
    folder = options.model_config_folder
    return config_path(Path(options.model)) is not None or bool(folder and Path(folder).exists())


def simulated(options: D) -> tuple[D, list[str]]:
    """Return the deployment to simulate, with notes on what stands in for the model and on a GPU that was not given.

    Raises StartError for the path of a folder that does not exist.
    """
    model, notes = options.model, []
    if not is_known(options):
        if is_path(model):
            raise StartError(f"--model must name a model or a folder with a config.json, got {model!r}")
        found = stand_in_model(model)
        notes.append(
            f"warning: model {model!r} is not in the catalogue: it is simulated as {found.model}, for {found.reason}; "
            "--model-config-folder FOLDER names a folder with its config.json"
        )
        model = found.model
    gpu, tp = default_deployment(model) or ("", 0)
    if not gpu and not options.hardware:
        gpu = DEFAULT_GPU
        notes.append(f"--hardware is not given: {model} is simulated on {gpu}")
    return replace(options, model=model, hardware=options.hardware or gpu, tp=options.tp or tp or 1), notes


def implied_routes(options: DeploymentOptions) -> Mapping[str, Any]:
    """Return the settings of routes that the model's class implies; of a model without a config its name does."""
    model = options.model
    if not is_known(options):
        return next((routes for word, routes in _ROUTES_BY_WORD.items() if word in model.lower()), {})
    config = folder_config(options.model_config_folder or model)
    if config is None and has_model(model):
        config = model_entry(model).checkpoint.config
    classes = (config or {}).get("architectures")
    if isinstance(classes, list) and any(str(each) in _SPEECH_CLASSES for each in classes):
        return _SPEECH
    conversion = pooling_conversion(model)
    return {"runner": "pooling", "convert": conversion} if conversion else {}


_SPEECH_CLASSES = ("WhisperForConditionalGeneration",)
_SPEECH: Mapping[str, Any] = {"task": ("transcription",)}
_EMBEDDING: Mapping[str, Any] = {"runner": "pooling", "convert": "embed"}
_RERANKING: Mapping[str, Any] = {"runner": "pooling", "convert": "classify"}
_ROUTES_BY_WORD: Mapping[str, Mapping[str, Any]] = {
    "whisper": _SPEECH,
    "rerank": _RERANKING,
    "cross-encoder": _RERANKING,
    "embed": _EMBEDDING,
    "bge-": _EMBEDDING,
    "e5-": _EMBEDDING,
    "gte-": _EMBEDDING,
    "minilm": _EMBEDDING,
    "sentence-transformers/": _EMBEDDING,
}
"""Words in the names of models, and what they are served for."""


def folder_config(model: str) -> Mapping[str, Any] | None:
    """Return the object in a model folder's `config.json`; None without such a file."""
    try:
        config = load_json(read_text(Path(model) / "config.json"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def pooling_conversion(model: str) -> str:
    """Return the default pooling conversion of a model, by its class name: embed, classify, or empty."""
    config = folder_config(model)
    if config is None:
        if not has_model(model):
            return ""
        entry = model_entry(model)
        if entry.pooling:
            return entry.pooling
        config = entry.checkpoint.config
    elif _has_pooling_module(model):
        return "embed"
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        for suffix, conversion in _CONVERSIONS:
            if str(name).endswith(suffix):
                return conversion
    return ""


def _has_pooling_module(model: str) -> bool:
    """Whether the folder belongs to sentence-transformers, which list their modules in a file."""
    try:
        modules = load_json(read_text(Path(model) / "modules.json"))
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
"""Suffixes of class names in vLLM's order, with their pooling conversions."""
