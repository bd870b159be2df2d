"""The size of a constraint, before a text is written for it.

The size is estimated from above without compiling anything. A constraint with unknown parts is never small.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from mockserve.generation.structured_outputs.json_instances import needs_validation
from mockserve.generation.structured_outputs.json_schema import TYPES, SchemaError, find_referenced
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
FREE_MEMBERS = 3
"""Maximum number of members of an object beyond those named by its schema."""

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "format", "$schema", "$comment"}
    | {"deprecated", "readOnly", "writeOnly"}
)
_PLAIN_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_PLAIN_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties"})
_RANGES = (
    *(("minimum", "maximum", 0), ("minimum", "exclusiveMaximum", 1), ("exclusiveMinimum", "maximum", 1)),
    *(("exclusiveMinimum", "exclusiveMaximum", 2), ("minLength", "maxLength", 0), ("minItems", "maxItems", 0)),
)
"""Keywords of a lower and an upper bound, and the least distance at which an integer lies between them."""


def is_small_demand(kind: str, value: Any) -> bool:
    """Whether the constraint in a field of `structured_outputs` is small."""
    return _SIZE_CHECKS[kind](value)


def is_small_schema(schema: Any, argument_ranges: ArgumentRanges = ANY) -> bool:
    """Whether a JSON schema is small: its instances have few values, and need no validation after they are made.

    A small schema has no pattern, whose text needs a library, and nothing that a backend may refuse for its form.
    """
    try:
        _SizeEstimator(schema, argument_ranges).schema(schema, 0, 1)
    except _LimitExceededError:
        return False
    return not needs_validation(schema)


class _LimitExceededError(Exception):
    """A bound is exceeded, or the form of the schema is not plain."""


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
            _require(found is True)
            return
        self._count(times, depth)
        _check_ranges(found)
        for name, value in found.items():
            if name in _ANNOTATIONS:
                self._count_plain_value(value, depth, 1)
            elif name in _PLAIN_NUMBERS:
                _require(type(value) in (int, float) and abs(value) <= MOST_NUMBER)
            elif name in _PLAIN_COUNTS:
                _require(type(value) is int and 0 <= value <= MOST_COUNT)
                self._count(value * times if name in ("minItems", "minProperties") else 0, 0)
                self._count(0, 0, value * times if name == "minLength" else 0)
            else:
                self._keyword(name, value, found, depth + 1, times)

    def _keyword(self, name: str, value: Any, schema: Mapping[str, Any], depth: int, times: int) -> None:
        """Count the value of a keyword that has schemas or values in it."""
        match name:
            case "type" | "const" | "enum" | "required":
                self._count_values(name, value, depth, times)
            case "properties" | "$defs" | "definitions":
                _require(isinstance(value, Mapping))
                own = times if name == "properties" else 1
                for key, each in value.items():
                    self._count(0, depth, len(key) * own)
                    self.schema(each, depth, own)
            case "anyOf":
                _require(isinstance(value, list) and bool(value))
                for each in value:
                    self.schema(each, depth, times)
            case "items" | "additionalProperties":
                least = schema.get("minItems" if name == "items" else "minProperties", 0)
                _require(type(least) is int)
                most = max(0, least) + self._more_items if name == "items" else max(FREE_MEMBERS, least)
                if value is not False:
                    self.schema(value, depth, times * most)
            case "$ref":
                try:
                    target = find_referenced(value, self._root)
                except SchemaError:
                    raise _LimitExceededError from None
                self.schema(target, depth, times)
            case _:
                raise _LimitExceededError

    def _count_values(self, name: str, value: Any, depth: int, times: int) -> None:
        if name == "type":
            names = value if isinstance(value, list) and value else [value]
            _require(all(isinstance(each, str) and each in TYPES for each in names))
            return
        if name == "enum":
            _require(isinstance(value, list) and bool(value))
        elif name == "required":
            _require(isinstance(value, list) and all(isinstance(each, str) for each in value))
        self._count_plain_value(value, depth, times)

    def _count(self, num_values: int, depth: int, num_chars: int = 0) -> None:
        self._values_left -= num_values
        self._chars_left -= num_chars
        if self._values_left < 0 or self._chars_left < 0 or depth > MAX_NESTED_IF_SMALL:
            raise _LimitExceededError

    def _count_plain_value(self, value: Any, depth: int, times: int) -> None:
        """Count a value that is no schema."""
        if isinstance(value, Mapping):
            self._count(times, depth)
            for name, each in value.items():
                self._count(0, depth, len(name) * times)
                self._count_plain_value(each, depth + 1, times)
        elif isinstance(value, list):
            self._count(times, depth)
            for each in value:
                self._count_plain_value(each, depth + 1, times)
        else:
            self._count(times, depth, len(value) * times if isinstance(value, str) else 0)
            _require(not isinstance(value, int | float) or abs(value) <= MOST_NUMBER)  # no NaN either


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise _LimitExceededError


def _check_ranges(schema: Mapping[str, Any]) -> None:
    for low, high, least in _RANGES:
        if low in schema and high in schema:
            first, last = schema[low], schema[high]
            _require(type(first) in (int, float) and type(last) in (int, float) and last - first >= least)


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
    "regex": lambda _: False,
    "choice": _are_small_choices,
    "grammar": lambda _: False,
    "json_object": lambda _: True,
    "structural_tag": lambda _: False,
}
"""Size checks by the field of `structured_outputs`. Grammars are never small: three lines can require any length."""
