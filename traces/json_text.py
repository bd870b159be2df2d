"""JSON as the other tools of this format write it: two-space indent, numbers in their shortest form."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from traces.text_file import writing

Write: TypeAlias = Callable[[str], object]


def dump_json(value: Any) -> str:
    """JSON text of plain values, keys in the order given, two-space indent, no newline at the end.

    Integral floats have no `.0`. Raises ValueError for nan and infinity, TypeError for what JSON cannot hold.
    """
    pieces: list[str] = []
    _write(value, "\n", pieces.append)
    return "".join(pieces)


def write_json(path: Path | str, value: Any, end: str = "") -> None:
    """Write that text to a file piece by piece, so that an iterator, written as an array, is never held as a whole.

    `end` follows the text. Raises TraceError.
    """
    with writing(Path(path)) as file:
        _write(value, "\n", file.write)
        file.write(end)


def number_text(value: float) -> str:
    """The shortest decimal that reads back as the same number, without exponent from 1e-6 up to 1e21."""
    if not math.isfinite(value):
        raise ValueError(f"there is no decimal for {value}")
    text = repr(float(value))
    if "e" not in text:
        return text.removesuffix(".0")
    if 1e-6 <= abs(value) < 1e21:
        from decimal import Decimal  # takes 1 ms to load; few figures have an exponent

        return format(Decimal(text), "f")
    return text.replace("e-0", "e-")


def _write(value: Any, newline: str, write: Write) -> None:
    if value is None or value is True or value is False:
        write({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        write(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, int):
        write(str(int(value)))
    elif isinstance(value, float):
        write(number_text(value))
    elif isinstance(value, Mapping):
        _write_items("{}", ((_label(str(key)), each) for key, each in value.items()), newline, write)
    elif isinstance(value, Sequence | Iterator):
        _write_items("[]", (("", each) for each in value), newline, write)
    else:
        raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _write_items(brackets: str, items: Iterable[tuple[str, Any]], newline: str, write: Write) -> None:
    inner = newline + "  "
    separator = brackets[0] + inner
    is_empty = True
    for label, value in items:
        write(separator + label)
        _write(value, inner, write)
        separator = "," + inner
        is_empty = False
    write(brackets if is_empty else newline + brackets[1])


@lru_cache(maxsize=1024)
def _label(key: str) -> str:
    """A key as it stands before its value; there are few keys, and millions of objects that have them."""
    return json.dumps(key, ensure_ascii=False) + ": "
