"""Finds GPUs: in `gpus.yaml` beside this module, or in a file that the user names."""

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.catalogue.nearest import nearest_hint

_FILE = Path(__file__).parent / "gpus.yaml"

_FIELDS: Mapping[str, str] = {
    **{each.name: each.name for each in fields(GpuSpec) if each.name != "name"},
    "tflopspeak": "tflops",
    "tflopsfp8": "tflops_fp8",
    "bwpeaktbs": "bandwidth_tb_s",
    "mfuprefill": "mfu_prefill",
    "mfudecode": "mfu_decode",
    "memorygib": "memory_gib",
    "computecapability": "compute_capability",
    "cudamemorygib": "cuda_memory_gib",
}
"""Spellings of a hardware file, lower-cased, and the field of GpuSpec that each one fills."""

_COUNTS = ("nvlink_gpus", "gpus_per_node")
_MOST_GPUS = 10_000
_LEAST_RATE, _MOST_RATE = 1e-6, 1e9
"""Rates of a GPU, as teraflops, terabytes per second or gibibytes, are between these; MFUs are fractions."""

_MAKERS = re.compile(r"^(nvidia|amd|instinct|geforce)+")


class GpuEntry(NamedTuple):
    """A GPU of the catalogue with its other names, where its figures were published, and the fields that were not."""

    gpu: GpuSpec
    aliases: tuple[str, ...]
    source: str
    assumed: tuple[str, ...]


def load_gpu(name: str, hardware_config: str | Path | None = None) -> GpuSpec:
    """Return the GPU called `name` of the catalogue, or of a JSON or YAML file that maps names to rates.

    Case, spaces, dashes and the maker's name make no difference. Raises EngineError, with the nearest names, when there
    is no such GPU, or when a rate is missing or impossible.
    """
    if hardware_config is None:
        origin, gpus = "the catalogue", _gpus()
        hint = "; `blis gpus` lists all, and --hardware-config FILE describes others"
    else:
        origin, hint = str(hardware_config), ""
        gpus = _by_key(read_mapping(Path(hardware_config)))
    found = gpus.get(_key(name))
    if found is None:
        known = {canonical for canonical, _ in gpus.values()}
        near = nearest_hint(name, known) if hint else f", known are {', '.join(sorted(known))}"
        raise EngineError(f"GPU {name!r} is not in {origin}{near}{hint}")
    return _gpu_spec(*found, origin)


def gpu_names() -> list[str]:
    """Return every GPU of the catalogue, without other names."""
    return sorted({canonical for canonical, _ in _gpus().values()})


def canonical_gpu(name: str) -> str:
    """Return the catalogue's own name of a GPU, `name` itself when the catalogue lacks it."""
    found = _gpus().get(_key(name))
    return found[0] if found else name


def gpu_entry(name: str) -> GpuEntry:
    """Return the catalogue's entry of a GPU. Raises EngineError when it lacks the GPU."""
    gpu = load_gpu(name)
    keys = _gpus()[_key(name)][1]
    return GpuEntry(gpu, tuple(keys.get("aliases", ())), keys.get("source", ""), tuple(keys.get("assumed", ())))


def _key(name: str) -> str:
    """Return what spellings of one name have in common."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return _MAKERS.sub("", letters) or letters


@cache
def _gpus() -> dict[str, tuple[str, Mapping[str, Any]]]:
    return _by_key(read_mapping(_FILE)["gpus"])


def _by_key(gpus: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the canonical name and the rates under the key of every name. Entries that are no mapping are comments."""
    by_key: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for canonical, rates in gpus.items():
        if isinstance(rates, Mapping):
            aliases = rates.get("aliases")
            for name in (canonical, *(aliases if isinstance(aliases, list) else ())):
                by_key[_key(str(name))] = (str(canonical), rates)
    return by_key


def _gpu_spec(name: str, rates: Mapping[str, Any], origin: str) -> GpuSpec:
    """Return the validated rates; keys that are not rates are ignored."""
    values: dict[str, Any] = {}
    for key, value in rates.items():
        field = _FIELDS.get(str(key).lower())
        if field is not None:
            values[field] = _checked(field, value, f"{origin}: {key} of GPU {name}")
    for field, spelling in (("tflops", "TFlopsPeak"), ("bandwidth_tb_s", "BwPeakTBs")):
        if not values.get(field):
            raise EngineError(f"{origin}: {spelling} of GPU {name} must be above 0, got {values.get(field, 'nothing')}")
    return GpuSpec(name=name, **values)


def _checked(field: str, value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise EngineError(f"{what} must be a number of at least 0, got {value!r}")
    if field in _COUNTS:
        if value != int(value) or not 1 <= value <= _MOST_GPUS:
            raise EngineError(f"{what} must be a whole number from 1 to {_MOST_GPUS}, got {value!r}")
        return int(value)
    most = 1.0 if field.startswith("mfu_") else _MOST_RATE
    if value and not _LEAST_RATE <= value <= most:
        raise EngineError(f"{what} must be 0 or from {_LEAST_RATE:g} to {most:g}, got {value}")
    return float(value)
