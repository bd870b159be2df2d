"""Finds models, GPUs and coefficients: in the data files beside this one, or in files the user names.

Nothing is ever downloaded.
"""

import csv
from functools import cache, lru_cache
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import parse_hf_config
from blis_sim.engine.latency.catalogue import (
    canonical_gpu,
    config_path,
    has_model,
    model_entry,
    read_mapping,
    short_name,
)
from blis_sim.engine.specs import Checkpoint, ModelSpec

_FOLDER = Path(__file__).parent / "catalogue"
LEARNED_COEFFICIENTS = _FOLDER / "qwen3-14b-h100.coefficients.yaml"
"""Learned by `blis fit` from Qwen3-14B on one H100; what the fitted latency model takes when given nothing else."""
KERNELS_HOST = _FOLDER / "qwen3-14b-h100.kernels-host.yaml"
"""Overheads of the host in a step, learned from the same server beside measured kernels."""
_KEPT_MODELS = 128


def load_model(name: str, folder_or_file: str | Path | None = None) -> ModelSpec:
    """The architecture of `name`: from the folder or `config.json` given, else from the catalogue.

    `name` is case-insensitive, its `org/` prefix may be left out, and it may itself be the path of a local
    Hugging Face folder or `config.json`. Raises EngineError when the model is unknown or its config unreadable.
    """
    if folder_or_file is not None:
        file = config_path(Path(folder_or_file))
        if file is None:
            raise EngineError(f"{folder_or_file}: no config.json there")
        return _model_in(file, short_name(name))
    file = config_path(Path(name))
    if file is not None:
        folder = file.resolve().parent if file.name == "config.json" else file.with_suffix("")
        return _model_in(file, folder.name.lower())
    return _catalogued(name)


@lru_cache(maxsize=_KEPT_MODELS)
def _catalogued(name: str) -> ModelSpec:
    checkpoint = model_entry(name).checkpoint
    return parse_hf_config(checkpoint.config, short_name(name), checkpoint.hf_quant_config)


def load_checkpoint(name: str, folder_or_file: str | Path | None = None) -> tuple[str, Checkpoint]:
    """Return the name and the config of a model, found as `load_model` finds it.

    Raises EngineError when the model is unknown or a file is unreadable.
    """
    file = config_path(Path(name if folder_or_file is None else folder_or_file))
    if file is None and folder_or_file is not None:
        raise EngineError(f"{folder_or_file}: no config.json there")
    if file is None:
        return short_name(name), model_entry(name).checkpoint
    own_name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return short_name(own_name if folder_or_file is None else name), _checkpoint_in(file)


def _checkpoint_in(file: Path) -> Checkpoint:
    quantization = file.parent / "hf_quant_config.json"
    return Checkpoint(read_mapping(file), read_mapping(quantization) if quantization.is_file() else None)


def _model_in(file: Path, name: str) -> ModelSpec:
    checkpoint = _checkpoint_in(file)
    try:
        return parse_hf_config(checkpoint.config, name, checkpoint.hf_quant_config)
    except EngineError as error:
        raise EngineError(f"{file}: {error}") from None


def default_deployment(model: str) -> tuple[str, int] | None:
    """The GPU and tensor parallelism to use for `model` when the user names none; None when it is not known."""
    if not has_model(model):
        return None
    entry = model_entry(model)
    return entry.gpu, entry.tp


def trained_coefficients(latency_model: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The alphas and betas that `latency_model` ships with."""
    row = read_mapping(_FOLDER / "coefficients.yaml")[latency_model]
    return tuple(map(float, row["alpha"])), tuple(map(float, row["beta"]))


def blackbox_coefficients(model: str, gpu: str, tp: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The three alphas and three betas fitted for exactly this model, GPU and tensor parallelism.

    Raises EngineError that names what there is for the model, or the models there are.
    """
    table = _blackbox_table()
    a_gpu = canonical_gpu(gpu)
    names = [short_name(model), model_entry(model).name] if has_model(model) else [short_name(model)]
    for name in names:
        if (name, a_gpu, tp) in table:
            return table[name, a_gpu, tp]
    choices = [f"{row_gpu} tp {row_tp}" for row_model, row_gpu, row_tp in table if row_model in names]
    known = f"there are {', '.join(choices)}" if choices else f"models that have some are {_blackbox_models()}"
    raise EngineError(
        f"no blackbox coefficients for {names[0]} on {a_gpu} with tp {tp}, {known}; "
        "or give --alpha-coeffs and --beta-coeffs"
    )


@cache
def _blackbox_table() -> dict[tuple[str, str, int], tuple[tuple[float, ...], tuple[float, ...]]]:
    """(model, GPU, tp) -> alphas and betas."""
    with (_FOLDER / "blackbox.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["model"], row["gpu"], int(row["tp"])): (
                (float(row["alpha0"]), float(row["alpha1"]), float(row["alpha2"])),
                (float(row["beta0"]), float(row["beta1"]), float(row["beta2"])),
            )
            for row in csv.DictReader(file)
        }


def _blackbox_models() -> str:
    return ", ".join(sorted({model for model, _, _ in _blackbox_table()}))
