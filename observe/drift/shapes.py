"""The shape of a reply: its status, and the members and types of its JSON, whatever the values. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

Shape: TypeAlias = Mapping[str, frozenset[str]]
"""Types by path; a path has names of members, and `[]` for the items of a list."""

_TYPES = {dict: "object", list: "list", str: "text", bool: "true or false", type(None): "null"}


def shape_of(status: int, content_type: str, body: bytes) -> Shape:
    """The shape of a reply; that of a stream has all its events together, below `event`."""
    found: dict[str, set[str]] = {"status": {str(status)}, "content type": {content_type.partition(";")[0].strip()}}
    if content_type.startswith("text/event-stream"):
        for line in body.replace(b"\r\n", b"\n").split(b"\n"):
            if line.startswith(b"data:"):
                _take(_parsed(line[5:].strip()), "event", found)
    else:
        _take(_parsed(body), "body", found)
    return {path: frozenset(types) for path, types in found.items()}


def differences(recorded: Shape, seen: Shape) -> list[str]:
    """The differences in words, by path. A null fits whatever else stands there, as most members may be null."""
    lines = []
    for path in sorted({*recorded, *seen}):
        then, now = recorded.get(path, frozenset()), seen.get(path, frozenset())
        if not now:
            if not _is_below_missing(path, seen, recorded):
                lines.append(f"{path} is missing, recorded as {_listed(then)}")
        elif not then:
            if not _is_below_missing(path, recorded, seen):
                lines.append(f"{path} is new, {_listed(now)}")
        elif not _agree(then - {"null"}, now - {"null"}):
            lines.append(f"{path} is {_listed(now)}, recorded as {_listed(then)}")
    return lines


def _agree(then: frozenset[str], now: frozenset[str]) -> bool:
    return not then or not now or then == now


def _is_below_missing(path: str, lacking: Shape, other: Shape) -> bool:
    """Whether the value around this path is missing or null on one side, which is enough to say."""
    parent, _, _ = path.rpartition(".")
    if not parent or parent not in other:
        return False
    return lacking.get(parent, frozenset({"null"})) <= {"null"}


def _take(value: Any, path: str, found: dict[str, set[str]]) -> None:
    left = [(path, value)]
    while left:
        at, each = left.pop()
        found.setdefault(at, set()).add(_TYPES.get(type(each), "number"))
        if isinstance(each, Mapping):
            left += [(f"{at}.{name}", member) for name, member in each.items()]
        elif isinstance(each, list):
            left += [(f"{at}.[]", member) for member in each]


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode("utf-8", "replace")


def _listed(types: Sequence[str] | frozenset[str]) -> str:
    return " or ".join(sorted(types))
