"""The models and GPUs of the catalogue: rows of `models.jsonl` and `gpus.yaml` beside this module, found by name.

A row of models has the keys of one published `config.json` that a plan of memory or a latency model reads, written
short:  - `{"times": 3, "of": [a, b]}` in a list stands for `a, b` three times; - `layers.{0..2,5}.mlp` in a list or as
a key stands for one text for each of the numbers; - `like` names a row whose keys this one has, but for those that it
states itself.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.specs import Checkpoint, GpuSpec

_MAX_SUGGESTIONS = 3
_MIN_SIMILARITY = 0.5
_LONGEST_NAME = 200
_SHORTEST_FAMILY = 3
"""Letters of the word with which names of one family begin, at least."""
_PARTS = re.compile(r"[a-z]+|\d+")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of `known` that share most words and letters with `name`, the nearest first."""
    requested = name.lower()[:_LONGEST_NAME]
    likeness = {each: _similarity(requested, each.lower()) for each in known}
    ranked = sorted(likeness, key=lambda each: (-likeness[each], each))
    return [each for each in ranked[:_MAX_SUGGESTIONS] if likeness[each] >= _MIN_SIMILARITY]


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return what to append to an error about `name`: its nearest matches, nothing when none is near."""
    found = nearest(name, known)
    return f", nearest are {', '.join(found)}" if len(found) > 1 else f", nearest is {found[0]}" if found else ""


def _similarity(requested: str, known: str) -> float:
    """Return the mean of the shared words and the shared letters, each from 0 to 1; 1 where one begins the other.

    Names of one family, which begin with the same word, are near whatever follows.
    """
    from difflib import SequenceMatcher  # a name that the catalogue has does without it

    if requested and (known.startswith(requested) or requested.startswith(known)):
        return 1.0
    words, others = _PARTS.findall(requested.rpartition("/")[2]), _PARTS.findall(known.rpartition("/")[2])
    all_words, all_others = set(_PARTS.findall(requested)), set(_PARTS.findall(known))
    shared = len(all_words & all_others) / max(len(all_words | all_others), 1)
    likeness = (shared + SequenceMatcher(None, requested, known, autojunk=False).ratio()) / 2
    is_family = words[:1] == others[:1] and len("".join(words[:1])) >= _SHORTEST_FAMILY
    return _MIN_SIMILARITY + (1 - _MIN_SIMILARITY) * likeness if is_family else likeness


_MODELS_FILE = Path(__file__).parent / "models.jsonl"
_NUMBERS = re.compile(r"\{([\d.,]+)\}")


class ModelEntry(NamedTuple):
    """A model of the catalogue.

    `name` is lower case and without `organisation`; `gpu` and `tp` are the deployment when the user names none.
    `source` is where the config was published, `assumed` are keys that could not be checked against a published one.
    """

    name: str
    organisation: str
    aliases: tuple[str, ...]
    gpu: str
    tp: int
    source: str
    assumed: tuple[str, ...]
    checkpoint: Checkpoint


def short_name(model: str) -> str:
    """Return how the catalogue spells a model: lower case, no `org/`."""
    return model.rstrip("/").rsplit("/", 1)[-1].lower()


def model_names() -> list[str]:
    """Return every model of the catalogue, without other names."""
    return sorted(_rows())


def has_model(name: str) -> bool:
    """Return whether the catalogue has `name`."""
    return _canonical(name) is not None


def model_entry(name: str) -> ModelEntry:
    """Return a model of the catalogue. Raises EngineError, with the nearest names, when the catalogue lacks it."""
    canonical = _canonical(name)
    if canonical is None:
        raise EngineError(
            f"model {name!r} is not in the catalogue{nearest_hint(short_name(name), _names())}; `blis models` lists "
            "all, and a folder with the config.json of another one takes its place"
        )
    return _entry(canonical)


def _canonical(name: str) -> str | None:
    """Return the name of the row that a user means; a family without a base model is found without its suffix."""
    names, short = _names(), short_name(name)
    return names.get(short) or names.get(f"{short}-instruct")


@cache
def _entry(name: str) -> ModelEntry:
    row = _rows()[name]
    quantization = row.get("hf_quant_config")
    return ModelEntry(
        name=name,
        organisation=row.get("organisation", ""),
        aliases=tuple(row.get("aliases", ())),
        gpu=row["deployment"]["gpu"],
        tp=row["deployment"]["tp"],
        source=row["source"],
        assumed=tuple(row.get("assumed", ())),
        checkpoint=Checkpoint(_config(name), None if quantization is None else _written_out(quantization)),
    )


def _config(name: str) -> dict[str, Any]:
    row = _rows()[name]
    own: dict[str, Any] = _written_out(row["config"])
    return {**_config(row["like"]), **own} if "like" in row else own


def _written_out(value: Any) -> Any:
    """Return a value without the short forms of the table."""
    if isinstance(value, dict):
        return {name: _written_out(each) for key, each in value.items() for name in _texts(key)}
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for each in value:
        if isinstance(each, dict) and each.keys() == {"times", "of"}:
            items += _written_out(each["of"]) * each["times"]
        elif isinstance(each, str):
            items += _texts(each)
        else:
            items.append(_written_out(each))
    return items


def _texts(text: str) -> Iterator[str]:
    """Yield the texts that one with numbers in braces stands for."""
    found = _NUMBERS.search(text)
    if found is None:
        yield text
        return
    for part in found[1].split(","):
        first, _, last = part.partition("..")
        for number in range(int(first), int(last or first) + 1):
            yield from _texts(f"{text[: found.start()]}{number}{text[found.end() :]}")


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    rows = map(json.loads, _MODELS_FILE.read_text(encoding="utf-8").splitlines())
    return {row["model"]: row for row in rows}


@cache
def _names() -> Mapping[str, str]:
    """Return the canonical name under every name."""
    return {name: model for model, row in _rows().items() for name in (model, *row.get("aliases", ()))}


_GPUS_FILE = Path(__file__).parent / "gpus.yaml"

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
_MAX_GPUS = 10_000
_MIN_RATE, _MAX_RATE = 1e-6, 1e9
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
    return _by_key(read_mapping(_GPUS_FILE)["gpus"])


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
        if value != int(value) or not 1 <= value <= _MAX_GPUS:
            raise EngineError(f"{what} must be a whole number from 1 to {_MAX_GPUS}, got {value!r}")
        return int(value)
    most = 1.0 if field.startswith("mfu_") else _MAX_RATE
    if value and not _MIN_RATE <= value <= most:
        raise EngineError(f"{what} must be 0 or from {_MIN_RATE:g} to {most:g}, got {value}")
    return float(value)
