"""JSON as the other tools of this format write it: two-space indent, numbers in their shortest form."""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any


def dump_json(value: Any) -> str:
    """JSON text of plain values, keys in the order given, two-space indent, no newline at the end.

    Integral floats have no `.0`. Raises ValueError for nan and infinity, TypeError for what JSON cannot hold.
    """
    pieces: list[str] = []
    _write(value, "\n", pieces)
    return "".join(pieces)


def number_text(value: float) -> str:
    """The shortest decimal that reads back as the same number, without exponent from 1e-6 up to 1e21."""
    if not math.isfinite(value):
        raise ValueError(f"there is no decimal for {value}")
    text = repr(float(value))
    if "e" not in text:
        return text.removesuffix(".0")
    if 1e-6 <= abs(value) < 1e21:
        return format(Decimal(text), "f")
    return text.replace("e-0", "e-")


def _write(value: Any, newline: str, pieces: list[str]) -> None:
    if value is None or value is True or value is False:
        pieces.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        pieces.append(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, int):
        pieces.append(str(int(value)))
    elif isinstance(value, float):
        pieces.append(number_text(value))
    elif isinstance(value, Mapping):
        entries = [(json.dumps(str(key), ensure_ascii=False) + ": ", each) for key, each in value.items()]
        _write_items("{}", entries, newline, pieces)
    elif isinstance(value, Sequence):
        _write_items("[]", [("", each) for each in value], newline, pieces)
    else:
        raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _write_items(brackets: str, items: list[tuple[str, Any]], newline: str, pieces: list[str]) -> None:
    if not items:
        pieces.append(brackets)
        return
    inner = newline + "  "
    separator = brackets[0] + inner
    for label, value in items:
        pieces.append(separator + label)
        _write(value, inner, pieces)
        separator = "," + inner
    pieces.append(newline + brackets[1])
