"""The size of a constraint, before a text is written for it.

The size is estimated from above without compiling anything. A constraint with unknown parts is never small.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from mockserve.generation.structured_outputs.json_instances import needs_validation
from mockserve.generation.structured_outputs.json_schema import SchemaError, find_referenced
from mockserve.options.content import ANY, ArgumentRanges

MAX_NESTED = 64
TOO_DEEP = f"The JSON schema is nested too deeply: objects and arrays may nest at most {MAX_NESTED} levels"

MOST_VALUES = 400
"""Maximum number of values in a small schema's instances, with references resolved and arrays at full length, plus
other nodes."""

MOST_CHARS = 10_000
MAX_NESTED_IF_SMALL = 24
MOST_JSON_CHARS = 4000
MOST_COUNT = 1000
MOST_NUMBER = 2**63
MOST_PATTERN_CHARS = 200
MOST_PATTERN_COST = 10_000
PATTERN_VALUES = 20
"""Number of values whose cost equals a text of a pattern."""

FREE_MEMBERS = 3
"""Maximum number of members of an object beyond those named by its schema."""

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "type", "format", "$schema", "$comment"}
    | {"deprecated", "readOnly", "writeOnly"}
)
_PLAIN_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_PLAIN_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties"})
_ASSERTIONS = re.compile(r"\(\?<?[=!]|\\b|\\B")
"""Marks of assertions, for which many tries may be needed."""
_REPEATS = re.compile(r"\{\s*(\d+)?\s*(?:,\s*(\d+)?\s*)?\}")


def is_small_demand(kind: str, value: Any) -> bool:
    """Whether the constraint in a field of `structured_outputs` is small."""
    return _SIZE_CHECKS[kind](value)


def is_small_schema(schema: Any, argument_ranges: ArgumentRanges = ANY) -> bool:
    """Whether a JSON schema is small: its instances have few values, and need no validation after they are made."""
    try:
        _SizeEstimator(schema, argument_ranges).schema(schema, 0, 1)
    except _LimitExceededError:
        return False
    return not needs_validation(schema)


def is_small_pattern(pattern: Any) -> bool:
    """Whether a regular expression is short and repeats little, so that its matches are short and soon found."""
    if not isinstance(pattern, str) or len(pattern) > MOST_PATTERN_CHARS or _ASSERTIONS.search(pattern):
        return False
    times = 1
    for match in _REPEATS.finditer(pattern):
        times *= max([1, *map(int, filter(None, match.groups()))])
    return times * len(pattern) <= MOST_PATTERN_COST


class _LimitExceededError(Exception):
    """A bound is exceeded."""


class _SizeEstimator:
    """Adds up the values and characters that a schema requires, and raises at the first exceeded bound."""

    def __init__(self, root: Any, argument_ranges: ArgumentRanges) -> None:
        self._root = root
        self._more_items = 2 if argument_ranges.array_lengths is None else argument_ranges.array_lengths[1]
        self._values_left = MOST_VALUES
        self._chars_left = MOST_CHARS

    def schema(self, found: Any, depth: int, times: int) -> None:
        """Count a schema whose values may be made `times` times."""
        if not isinstance(found, Mapping):
            self._plain(found, depth, times)
            return
        self._count(times, depth)
        for name, value in found.items():
            if name in _ANNOTATIONS:
                self._plain(value, depth, 1)
            elif name in _PLAIN_NUMBERS:
                self._number(value)
            elif name in _PLAIN_COUNTS:
                self._counted(name, value, times)
            elif name in _READERS:
                _READERS[name](self, value, depth + 1, times)
            elif name == "items":
                self._items(value, found.get("minItems", 0), depth + 1, times)
            elif name == "additionalProperties":
                self._additional(value, found.get("minProperties", 0), depth + 1, times)
            else:
                raise _LimitExceededError

    def _count(self, num_values: int, depth: int, num_chars: int = 0) -> None:
        self._values_left -= num_values
        self._chars_left -= num_chars
        if self._values_left < 0 or self._chars_left < 0 or depth > MAX_NESTED_IF_SMALL:
            raise _LimitExceededError

    def _plain(self, value: Any, depth: int, times: int) -> None:
        """Count a value that is no schema."""
        if isinstance(value, Mapping):
            self._count(times, depth)
            for name, each in value.items():
                self._count(0, depth, len(name) * times)
                self._plain(each, depth + 1, times)
        elif isinstance(value, list):
            self._count(times, depth)
            for each in value:
                self._plain(each, depth + 1, times)
        else:
            self._count(times, depth, len(value) * times if isinstance(value, str) else 0)
            if isinstance(value, int | float):
                self._number(value)

    def _number(self, value: Any) -> None:
        if isinstance(value, int | float) and not abs(value) <= MOST_NUMBER:  # nor is a NaN
            raise _LimitExceededError

    def _counted(self, name: str, value: Any, times: int) -> None:
        if type(value) is not int or not 0 <= value <= MOST_COUNT:
            raise _LimitExceededError
        if name in ("minItems", "minProperties"):
            self._count(value * times, 0)
        elif name == "minLength":
            self._count(0, 0, value * times)

    def _items(self, value: Any, least: Any, depth: int, times: int) -> None:
        if isinstance(value, list) or type(least) is not int:
            raise _LimitExceededError
        self.schema(value, depth, times * (max(0, least) + self._more_items))

    def _members(self, value: Any, depth: int, times: int) -> None:
        if not isinstance(value, Mapping):
            self._plain(value, depth, times)
            return
        for name, each in value.items():
            self._count(0, depth, len(name) * times)
            self.schema(each, depth, times)

    def _definitions(self, value: Any, depth: int, _times: int) -> None:
        self._members(value, depth, 1)

    def _parts(self, value: Any, depth: int, times: int) -> None:
        if not isinstance(value, list):
            self._plain(value, depth, times)
            return
        for each in value:
            self.schema(each, depth, times)

    def _additional(self, value: Any, least: Any, depth: int, times: int) -> None:
        if type(least) is not int:
            raise _LimitExceededError
        self.schema(value, depth, times * max(FREE_MEMBERS, least))

    def _pattern(self, value: Any, depth: int, times: int) -> None:
        if not is_small_pattern(value):
            raise _LimitExceededError
        self._count(PATTERN_VALUES * times, depth)

    def _reference(self, value: Any, depth: int, times: int) -> None:
        try:
            target = find_referenced(value, self._root)
        except SchemaError:
            return  # which reading the schema finds as soon
        self.schema(target, depth, times)


_READERS: dict[str, Callable[[_SizeEstimator, Any, int, int], None]] = {
    "properties": _SizeEstimator._members,
    "$defs": _SizeEstimator._definitions,
    "definitions": _SizeEstimator._definitions,
    "required": _SizeEstimator._plain,
    "enum": _SizeEstimator._plain,
    "const": _SizeEstimator._plain,
    "anyOf": _SizeEstimator._parts,
    "prefixItems": _SizeEstimator._parts,
    "pattern": _SizeEstimator._pattern,
    "$ref": _SizeEstimator._reference,
}


def _is_small_json(schema: Any) -> bool:
    if not isinstance(schema, str):
        return is_small_schema(schema)
    if len(schema) > MOST_JSON_CHARS:
        return False
    try:
        return is_small_schema(json.loads(schema))
    except (ValueError, RecursionError):
        return True  # it is refused as soon


def _are_small_choices(choices: Any) -> bool:
    if not isinstance(choices, list) or len(choices) > MOST_VALUES:
        return False
    num_chars = 0
    for each in choices:
        if not isinstance(each, str | int | float | None):
            return False
        num_chars += len(each) if isinstance(each, str) else 1
        if num_chars > MOST_CHARS:
            return False
    return True


_SIZE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "json": _is_small_json,
    "regex": is_small_pattern,
    "choice": _are_small_choices,
    "grammar": lambda _: False,
    "json_object": lambda _: True,
    "structural_tag": lambda _: False,
}
"""Size checks by the field of `structured_outputs`. Grammars are never small: three lines can require any length."""
