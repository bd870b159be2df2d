"""The models and GPUs of the catalogue: rows of `models.jsonl` and `gpus.yaml`, found by name."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.specs import Checkpoint, GpuSpec
from blis_sim.options.files import read_text

# Reads one JSON or YAML file into a mapping, or raises an error of one line.

YAML_SUFFIXES = (".yaml", ".yml")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping at the top level of a YAML file (by its suffix) or a JSON file.

    Raises EngineError with the path, and the line where parsing failed.
    """
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise EngineError(f"{path}: cannot be read: {reason}") from None
    value = _parse_yaml(path, text) if path.suffix in YAML_SUFFIXES else _parse_json(path, text)
    if not isinstance(value, dict):
        raise EngineError(f"{path}: must be a mapping of names to values, got {type(value).__name__}")
    return value


def config_path(path: Path) -> Path | None:
    """The model config that `path` names, or contains as `config.json`; None when there is none."""
    try:
        if path.is_dir():
            path = path / "config.json"
        return path if path.is_file() and path.suffix in (".json", *YAML_SUFFIXES) else None
    except OSError:  # no name of a file
        return None


def _parse_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EngineError(f"{path}: line {error.lineno} is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise EngineError(f"{path}: it is not valid JSON: {error}") from None


def _parse_yaml(path: Path, text: str) -> Any:
    from blis_sim.options.yaml_text import YamlError, load_yaml  # which few deployments need

    try:
        return load_yaml(text)
    except YamlError as error:
        place = "it is" if error.line is None else f"line {error.line} is"
        raise EngineError(f"{path}: {place} not valid YAML: {error.problem}") from None


# The models and GPUs of the catalogue: rows of `models.jsonl` and `gpus.yaml` beside this module, found by name.
#
# Rows of `small_models.jsonl` are shapes of models that tests of clients use. They are found by name, and not listed:
# few of their sizes could be compared with a published config.
#
# A row of models has the keys of one published `config.json` that a plan of memory or a latency model reads, written
# short: - `{"times": 3, "of": [a, b]}` in a list stands for `a, b` three times; - `layers.{0..2,5}.mlp` in a list or
# as a key stands for one text for each of the numbers; - `like` names a row whose keys this one has, but for those
# that it states itself.

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
    all_words, all_others = set(_PARTS.findall(requested)), set(_PARTS.findall(known))
    shared = len(all_words & all_others) / max(len(all_words | all_others), 1)
    likeness = (shared + SequenceMatcher(None, requested, known, autojunk=False).ratio()) / 2
    is_family = _begins_alike(requested.rpartition("/")[2], known.rpartition("/")[2])
    return _MIN_SIMILARITY + (1 - _MIN_SIMILARITY) * likeness if is_family else likeness


_MODELS_FILE = Path(__file__).parent / "catalogue" / "models.jsonl"
_SMALL_MODELS_FILE = Path(__file__).parent / "catalogue" / "small_models.jsonl"
_SMALL_GPU = "H100"
_NUMBERS = re.compile(r"\{([\d.,]+)\}")


class ModelEntry(NamedTuple):
    """A model of the catalogue.

    `name` is lower case and without `organisation`; `gpu` and `tp` are the deployment when the user names none.
    `source` is where the config was published, `assumed` are keys that could not be checked against a published one.
    `pooling` is what a pooling model gives whose class does not tell: `embed`, else empty.
    """

    name: str
    organisation: str
    aliases: tuple[str, ...]
    gpu: str
    tp: int
    source: str
    assumed: tuple[str, ...]
    checkpoint: Checkpoint
    pooling: str = ""


def short_name(model: str) -> str:
    """Return how the catalogue spells a model: lower case, no `org/`."""
    return model.rstrip("/").rsplit("/", 1)[-1].lower()


def model_names() -> list[str]:
    """Return every listed model of the catalogue, without other names."""
    return sorted(_rows())


def has_model(name: str) -> bool:
    """Return whether the catalogue has `name`."""
    return _canonical(name) is not None


_OTHER_CONFIG = "a folder with the config.json of another one takes its place"


def is_path(name: str) -> bool:
    """Return whether a name can only be a path: on a hub a name has at most one slash, between two words."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/")


def model_entry(name: str) -> ModelEntry:
    """Return a model of the catalogue. Raises EngineError, with the nearest names, when the catalogue lacks it."""
    canonical = _canonical(name)
    if canonical is None:
        raise EngineError(
            f"model {name!r} is not in the catalogue{nearest_hint(short_name(name), _names())}; `blis models` lists "
            f"all, {_OTHER_CONFIG}, and `blis serve` simulates {stand_in_model(name).model} for it"
            if not is_path(name)
            else f"model {name!r} is no folder with a config.json, and no name of a model; `blis models` lists all"
        )
    return _entry(canonical)


def _canonical(name: str) -> str | None:
    """Return the name of the row that a user means; a family without a base model is found without its suffix."""
    short = short_name(name)
    for names in (_names, _small_names):
        if found := names().get(short) or names().get(f"{short}-instruct"):
            return found
    return None


@cache
def _entry(name: str) -> ModelEntry:
    row = _row(name)
    quantization, deployment = row.get("hf_quant_config"), row.get("deployment", {"gpu": _SMALL_GPU, "tp": 1})
    return ModelEntry(
        name=name,
        organisation=row.get("organisation", ""),
        aliases=tuple(row.get("aliases", ())),
        gpu=deployment["gpu"],
        tp=deployment["tp"],
        source=row.get("source", "the shape that its family publishes"),
        assumed=tuple(row.get("assumed", () if "deployment" in row else ("all keys",))),
        checkpoint=Checkpoint(_config(name), None if quantization is None else _written_out(quantization)),
        pooling=row.get("pooling", ""),
    )


def _row(name: str) -> Mapping[str, Any]:
    return _rows().get(name) or _small_rows()[name]


def _config(name: str) -> dict[str, Any]:
    row = _row(name)
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
    return _read_rows(_MODELS_FILE)


@cache
def _small_rows() -> Mapping[str, Mapping[str, Any]]:
    return _read_rows(_SMALL_MODELS_FILE)


def _read_rows(file: Path) -> Mapping[str, Mapping[str, Any]]:
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["model"]: row for row in rows}


@cache
def _names() -> Mapping[str, str]:
    """Return the canonical name under every name of a listed model."""
    return _by_name(_rows())


@cache
def _small_names() -> Mapping[str, str]:
    return _by_name(_small_rows())


def _by_name(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    return {name: model for model, row in rows.items() for name in (model, *row.get("aliases", ()))}


_TOTAL = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?e?(\d+(?:[._]\d+)?)([bm])(\d)?(?![a-z0-9])")
_ACTIVE = re.compile(r"(?<![a-z0-9.])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
_EXPERTS = re.compile(r"(?<![a-z0-9.])\d+e(?![a-z0-9])")
_FORMATS = ("awq", "fp8", "nvfp4", "w4a16")
_SPARSE_EXPERTS = 2
"""Experts that a token passes through, where a name states their number and size as in 8x7b."""
_USUAL_MODEL = "llama-3.1-8b-instruct"


class StandIn(NamedTuple):
    """A model of the catalogue in place of one that the catalogue lacks, and why this one."""

    model: str
    reason: str


def stand_in_model(name: str) -> StandIn:
    """Return the model that is nearest in size to what a name states, among equals the one with the most similar name.

    A name without a size gets the model with the most similar name, else one of usual size.
    """
    short = short_name(name)[:_LONGEST_NAME]
    size = _size_in(short)
    if size is None:
        near = nearest(short, _rows())
        return StandIn(near[0], "its name is the nearest") if near else StandIn(_USUAL_MODEL, "its size is usual")
    sizes = {each: found for each in (*_rows(), *_small_rows()) if (found := _size_in(each)) and _generates(each)}
    distance = {each: _distance(size, found) for each, found in sizes.items()}
    least = min(distance.values())
    alike = [each for each in sizes if distance[each] <= least + _SAME_SIZE]
    alike = [each for each in alike if _formats_in(each) == _formats_in(short)] or alike
    family = [each for each in alike if _begins_alike(short, each)]
    if family:
        best = min(family, key=lambda each: (-_similarity(short, each), distance[each], each))
    else:
        best = min(alike, key=lambda each: (each not in _rows(), not _is_usual(each), distance[each], each))
    return StandIn(best, "its size is the nearest to what the name states")


def _formats_in(name: str) -> set[str]:
    """Return the formats of weights that a name states."""
    return {word for word in _FORMATS if word in name}


def _begins_alike(one: str, other: str) -> bool:
    """Whether two names begin with the same word, as those of one family do."""
    words, others = _PARTS.findall(one)[:1], _PARTS.findall(other)[:1]
    return words == others and len("".join(words)) >= _SHORTEST_FAMILY


def _is_usual(name: str) -> bool:
    return name.startswith(("llama-3", "qwen3-", "qwen2.5-"))


_SAME_SIZE = 0.05
"""Factors of two between sizes that count as equal."""


def _size_in(name: str) -> tuple[float, float] | None:
    """Return the parameters that a name states, in all and for one token; None for a name that states none."""
    found = _TOTAL.search(name)
    if found is None or _EXPERTS.search(name):
        return None
    copies, number, unit, fraction = found.groups()
    total = float(number.replace("_", ".") + (f".{fraction}" if fraction else "")) * (1e9 if unit == "b" else 1e6)
    active = _ACTIVE.search(name)
    if total <= 0 or (active is not None and float(active[1]) <= 0):
        return None
    if copies:
        return total * int(copies), total * _SPARSE_EXPERTS
    return total, float(active[1]) * 1e9 if active else total


def _distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return by how many factors of two sizes differ, in all and for one token."""
    return sum(abs(log2(a / b)) for a, b in zip(one, other, strict=True))


def _generates(name: str) -> bool:
    """Whether a model generates text."""
    entry = _entry(name)
    classes = entry.checkpoint.config.get("architectures") or ["ForCausalLM"]
    return not entry.pooling and any(str(each).endswith(("ForCausalLM", "LMHeadModel")) for each in classes)


_GPUS_FILE = Path(__file__).parent / "catalogue" / "gpus.yaml"

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
        near = nearest_hint(name, known) if hint else f", known are {', '.join(sorted(known)) or 'none'}"
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
