"""Finds models, GPUs and coefficients: in the data files beside this one, or in files the user names.

Nothing is ever downloaded.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.hf_config import parse_hf_config
from blis_sim.engine.latency.catalogue.files import config_path, read_mapping
from blis_sim.engine.model_spec import Checkpoint, ModelSpec

_FOLDER = Path(__file__).parent
LEARNED_COEFFICIENTS = _FOLDER / "qwen3-14b-h100.coefficients.yaml"
"""Learned by `blis fit` from Qwen3-14B on one H100; what the fitted latency model takes when given nothing else."""

# Spellings of a hardware file, lower-cased, and the GpuSpec field each one fills.
_GPU_FIELDS: Mapping[str, str] = {
    "tflopspeak": "tflops",
    "tflopsfp8": "tflops_fp8",
    "bwpeaktbs": "bandwidth_tb_s",
    "mfuprefill": "mfu_prefill",
    "mfudecode": "mfu_decode",
    "memorygib": "memory_gib",
    "tflops": "tflops",
    "tflops_fp8": "tflops_fp8",
    "bandwidth_tb_s": "bandwidth_tb_s",
    "mfu_prefill": "mfu_prefill",
    "mfu_decode": "mfu_decode",
    "memory_gib": "memory_gib",
    "computecapability": "compute_capability",
    "compute_capability": "compute_capability",
    "cudamemorygib": "cuda_memory_gib",
    "cuda_memory_gib": "cuda_memory_gib",
}


_LEAST_RATE, _MOST_RATE = 1e-6, 1e9
"""Rates of a GPU, as teraflops, terabytes per second or gibibytes, are between these; MFUs are fractions."""


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
    return parse_hf_config(_catalogue_entry(name)[1]["config"], short_name(name))


def load_checkpoint(name: str, folder_or_file: str | Path | None = None) -> tuple[str, Checkpoint]:
    """Return the name and the config of a model, found as `load_model` finds it.

    Raises EngineError when the model is unknown or a file is unreadable.
    """
    file = config_path(Path(name if folder_or_file is None else folder_or_file))
    if file is None and folder_or_file is not None:
        raise EngineError(f"{folder_or_file}: no config.json there")
    if file is None:
        return short_name(name), Checkpoint(_catalogue_entry(name)[1]["config"])
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


def knows_model(name: str) -> bool:
    """Whether the catalogue has `name`."""
    return short_name(name) in _models()


def model_names() -> list[str]:
    """Every model of the catalogue, without aliases."""
    return sorted({canonical for canonical, _ in _models().values()})


def default_deployment(model: str) -> tuple[str, int] | None:
    """The GPU and tensor parallelism to use for `model` when the user names none; None when it is not known."""
    if not knows_model(model):
        return None
    deployment = _catalogue_entry(model)[1]["deployment"]
    return deployment["gpu"], deployment["tp"]


def load_gpu(name: str, hardware_config: str | Path | None = None) -> GpuSpec:
    """The GPU called `name`, in any case, from the catalogue or from a JSON or YAML file that maps names to rates.

    Raises EngineError, with the choices named, when there is no such GPU or a rate is missing or impossible.
    """
    if hardware_config is None:
        origin, gpus = "the catalogue", _gpus()
    else:
        origin = str(hardware_config)
        gpus = _gpus_by_name(read_mapping(Path(hardware_config)))
    if name.lower() not in gpus:
        known = ", ".join(sorted({canonical for canonical, _ in gpus.values()}))
        hint = "" if hardware_config else "; describe others with --hardware-config FILE"
        raise EngineError(f"GPU {name!r} is not in {origin}, known are {known}{hint}")
    canonical, rates = gpus[name.lower()]
    return _gpu_spec(canonical, rates, origin)


def gpu_names() -> list[str]:
    """Every GPU of the catalogue, without aliases."""
    return sorted({canonical for canonical, _ in _gpus().values()})


def trained_coefficients(latency_model: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The alphas and betas that `latency_model` ships with."""
    row = read_mapping(_FOLDER / "coefficients.yaml")[latency_model]
    return tuple(map(float, row["alpha"])), tuple(map(float, row["beta"]))


def blackbox_coefficients(model: str, gpu: str, tp: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The three alphas and three betas fitted for exactly this model, GPU and tensor parallelism.

    Raises EngineError that names what there is for the model, or the models there are.
    """
    table = _blackbox_table()
    a_gpu = _gpus()[gpu.lower()][0] if gpu.lower() in _gpus() else gpu
    names = [short_name(model), _catalogue_entry(model)[0]] if knows_model(model) else [short_name(model)]
    for name in names:
        if (name, a_gpu, tp) in table:
            return table[name, a_gpu, tp]
    choices = [f"{row_gpu} tp {row_tp}" for row_model, row_gpu, row_tp in table if row_model in names]
    known = f"there are {', '.join(choices)}" if choices else f"models that have some are {_blackbox_models()}"
    raise EngineError(
        f"no blackbox coefficients for {names[0]} on {a_gpu} with tp {tp}, {known}; "
        "or give --alpha-coeffs and --beta-coeffs"
    )


def short_name(model: str) -> str:
    """How the catalogue spells a model: lower case, no `org/`."""
    return model.rstrip("/").rsplit("/", 1)[-1].lower()


def _catalogue_entry(name: str) -> tuple[str, Mapping[str, Any]]:
    try:
        return _models()[short_name(name)]
    except KeyError:
        raise EngineError(
            f"model {name!r} is not in the catalogue, known are {', '.join(model_names())}; "
            "for another one give --model-config-folder, a folder with the config.json of the model"
        ) from None


@cache
def _models() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Name or alias -> canonical name and catalogue entry."""
    entries: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for canonical, entry in read_mapping(_FOLDER / "models.yaml")["models"].items():
        for name in (canonical, *entry.get("aliases", ())):
            entries[name] = (canonical, entry)
    return entries


@cache
def _gpus() -> dict[str, tuple[str, Mapping[str, Any]]]:
    return _gpus_by_name(read_mapping(_FOLDER / "gpus.yaml")["gpus"])


def _gpus_by_name(gpus: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Lower-cased name or alias -> canonical name and rates. Entries that are no mapping are comments."""
    by_name: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for canonical, rates in gpus.items():
        if isinstance(rates, Mapping):
            aliases = rates.get("aliases")
            for name in (canonical, *(aliases if isinstance(aliases, list) else ())):
                by_name[str(name).lower()] = (str(canonical), rates)
    return by_name


def _gpu_spec(name: str, rates: Mapping[str, Any], origin: str) -> GpuSpec:
    """Validated rates; keys that are not rates are ignored."""
    values: dict[str, float] = {}
    for key, value in rates.items():
        field = _GPU_FIELDS.get(str(key).lower())
        if field is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise EngineError(f"{origin}: {key} of GPU {name} must be a number of at least 0, got {value!r}")
        most = 1.0 if field.startswith("mfu_") else _MOST_RATE
        if value and not _LEAST_RATE <= value <= most:
            raise EngineError(
                f"{origin}: {key} of GPU {name} must be 0 or from {_LEAST_RATE:g} to {most:g}, got {value}"
            )
        values[field] = float(value)
    for field, spelling in (("tflops", "TFlopsPeak"), ("bandwidth_tb_s", "BwPeakTBs")):
        if not values.get(field):
            raise EngineError(f"{origin}: {spelling} of GPU {name} must be above 0, got {values.get(field, 'nothing')}")
    return GpuSpec(name=name, **values)


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
