"""Reads attacked files a second time, strictly, and objects to values that a command should not have accepted."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from traces import TRACE_COLUMNS
from traces.rows import STATUSES
from workshop.attack.file_samples import samples
from workshop.attack.mutations import places

_WHOLE = re.compile(r"\s*[-+]?[0-9]{1,19}\s*")
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")
_AMBIGUOUS = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)")
"""Scalars that YAML 1.1 and 1.2 read as different values."""
_SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "moe_intermediate_size", "num_experts", "num_experts_per_tok", "vocab_size", "max_position_embeddings",
)  # fmt: skip
_KINDS = {column.name: column.kind for column in TRACE_COLUMNS}
_REQUIRED = [column.name for column in TRACE_COLUMNS if column.required]


def objection(name: str, content: bytes) -> str | None:
    """Describe what is wrong with an accepted file; None if nothing is, or if there is no strict reader for it."""
    reader = next((check for start, check in _READERS.items() if name.startswith(start)), None)
    if reader is None:
        return None
    try:
        return reader(content.decode("utf-8-sig"))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, csv.Error, yaml.YAMLError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


def _rows(text: str) -> str | None:
    found = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1 or "".join(row).strip()]
    if not found:
        return "no header"
    names = [name.strip().lower() for name in found[0]]
    for number, row in enumerate(found[1:]):
        if len(row) != len(names):
            return f"row {number} has {len(row)} of {len(names)} cells"
        for name, cell in zip(names, row, strict=True):
            problem = _cell(name, cell)
            if problem is not None:
                return f"row {number} column {name}: {problem} {cell[:40]!r}"
    return None


def _cell(name: str, cell: str) -> str | None:
    kind = _KINDS.get(name)
    if not cell.strip() and name not in _REQUIRED:
        return None
    if kind is int and not _WHOLE.fullmatch(cell):
        return "no whole number"
    if kind is float and not _NUMBER.fullmatch(cell):
        return "no number"
    return "unknown status" if name == "status" and cell not in STATUSES else None


def _distinct_rows(text: str) -> str | None:
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    ids = [int(row["request_id"]) for row in found if (row.get("request_id") or "").strip()]
    return "doubled request_id" if len(set(ids)) < len(ids) else _rows(text)


def _plain_cells(text: str) -> str | None:
    found = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1 or "".join(row).strip()]
    return "rows of different lengths" if len({len(row) for row in found}) > 1 else None


def _config(text: str) -> str | None:
    config = json.loads(text)
    for key in _SIZES:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value > 10**12:
            return f"{key} is {value!r}"
    return None


def _hardware(text: str) -> str | None:
    for name, value in json.loads(text).get("T1", {}).items():
        if name.lower().startswith("mfu") and not 0 <= value <= 1:
            return f"{name} is {value}"
    return None


def _results(text: str) -> str | None:
    """Compare token counts with the recording; the first request is warm-up and is not compared."""
    for item in {item.get("request_id"): item for item in json.loads(text)}.values():
        for key in ("input_tokens", "output_tokens"):
            least = 40 if key == "input_tokens" else 5
            number = item["request_id"]
            if number in range(1, 6) and item.get(key) not in (None, 0, least + number, least + number + 16):
                return f"{key} of request {number} is {item[key]}"
    return None


def _yaml(text: str) -> str | None:
    try:
        loaded = yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError:  # the parser in Python reads "params:{value: 1}", and so do the commands
        loaded = yaml.load(text, yaml.BaseLoader)
    return _ambiguous(loaded, "") or (_header(loaded) if isinstance(loaded, dict) else None)


def _header(loaded: Mapping[str, Any]) -> str | None:
    allowed = {
        "time_unit": ("us", "microseconds", ""),
        "mode": ("real", "generated", "replayed", ""),
        "trace_version": ("1", "2", "3", ""),
        "version": ("1", "2", ""),
    }
    for key, values in allowed.items():
        value = loaded.get(key)
        if isinstance(value, str) and value not in (*values, "null", "~") and not _is_among(value, values):
            return f"{key} is {value[:40]!r}"
    return None


def _is_among(value: str, values: tuple[str, ...]) -> bool:
    return _NUMBER.fullmatch(value) is not None and any(
        each and each.isdigit() and float(value) == int(each) for each in values
    )


def _ambiguous(loaded: Any, key: str) -> str | None:
    if isinstance(loaded, dict):
        return next(filter(None, (_ambiguous(value, str(name)) for name, value in loaded.items())), None)
    if isinstance(loaded, list):
        return next(filter(None, (_ambiguous(value, key) for value in loaded)), None)
    is_number = key in _numeric_keys() and isinstance(loaded, str) and _AMBIGUOUS.fullmatch(loaded)
    return f"{key} is {loaded!r}" if is_number else None


def _numeric(tree: Any) -> Iterator[str]:
    """Yield the keys whose values are numbers."""
    for container, key in places(tree):
        value = container[key]
        if isinstance(container, dict) and isinstance(value, int | float) and not isinstance(value, bool):
            yield str(key)


@cache
def _numeric_keys() -> frozenset[str]:
    trees = [yaml.safe_load(sample.content) for sample in samples() if sample.kind == "yaml"]
    return frozenset(key for tree in trees for key in _numeric(tree))


_READERS: Mapping[str, Callable[[str], str | None]] = {
    "trace rows": _distinct_rows,
    **dict.fromkeys(("calibrated rows", "composed rows", "sent rows", "second recording"), _rows),
    "convert servegen lengths": lambda text: None,
    "convert servegen images": lambda text: None,
    **dict.fromkeys(("token times", "lengths of vidur", "convert azure", "convert burstgpt"), _plain_cells),
    **dict.fromkeys(("convert vidur", "convert servegen", "data set burstgpt"), _plain_cells),
    "config.json": _config,
    "hardware": _hardware,
    "results": _results,
    **dict.fromkeys(("trace header", "spec", "composed", "saturation"), _yaml),
}
