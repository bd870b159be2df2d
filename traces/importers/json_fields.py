"""Reading JSON that another program wrote: values of a known kind, or one clear error with the place."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from traces.errors import TraceError
from traces.importers.arrivals import MOST_S
from traces.text_file import read_bytes

_NUMBERS = {
    "a number": 2**53,
    "a whole number": 2**53,
    "a time in seconds": MOST_S,
    "a time in milliseconds": MOST_S * 1000,
    "a time in nanoseconds": 2**63,
}
"""By kind what all numbers are below."""
_KINDS = {
    "a number": (int, float),
    "a whole number": (int,),
    "a time in seconds": (int, float),
    "a time in milliseconds": (int, float),
    "a time in nanoseconds": (int,),
    "a list": (list,),
    "an object": (dict,),
    "text": (str,),
}


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its place for errors. Raises TraceError."""
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        place = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{place}: expected a JSON object, {error.msg}") from error
        yield place, expect(place, "an object", value)


def at(place: str, holder: Mapping[str, Any], key: str, kind: str) -> Any:
    """The value of a key that must be there. Raises TraceError."""
    if key not in holder:
        raise TraceError(f"{place}: the key {key} is missing, found {', '.join(map(str, holder)) or 'none'}")
    return expect(f"{place} key {key}", kind, holder[key])


def expect(place: str, kind: str, value: Any) -> Any:
    """The value, if it is of this kind; numbers are not negative. Raises TraceError."""
    fits = isinstance(value, _KINDS[kind]) and not isinstance(value, bool)
    if not fits or (kind in _NUMBERS and not 0 <= value < _NUMBERS[kind]):
        shown = repr(value)
        raise TraceError(f"{place}: expected {kind}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return value
