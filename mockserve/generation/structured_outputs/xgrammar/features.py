"""The features that xgrammar supports, and the errors for others."""

import time
from collections.abc import Iterator, Mapping
from typing import Any


class XgrammarError(ValueError):
    """A refusal of the xgrammar library.

    Most messages name the C++ source line that found the problem, after the local time; `place` is the line. Errors of
    C++ libraries below xgrammar have neither.
    """

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = place

    @property
    def message(self) -> str:
        """Return the message of the library, stamped with the current local time."""
        if self.place is None:
            return self.reason
        return f"[{time.strftime('%H:%M:%S')}] /project/cpp/{self.place}: {self.reason}\n"


SUPPORTED_FORMATS = frozenset(
    {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"}
    | {"uri-template", "json-pointer", "relative-json-pointer"}
)
_ARRAY_KEYWORDS = ("uniqueItems", "contains", "minContains", "maxContains")


def has_unsupported_features(schema: Any) -> bool:
    """Whether any object within `schema` has a combination of keywords that xgrammar cannot enforce."""
    pending = [schema] if isinstance(schema, Mapping) else []
    while pending:
        found = pending.pop()
        if _is_unsupported(found):
            return True
        pending.extend(_objects_in(found))
    return False


def _objects_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in schema.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Mapping):
                yield each


def _is_unsupported(schema: Mapping[str, Any]) -> bool:
    types = _types(schema)
    if types & {"integer", "number"} and "multipleOf" in schema:
        return True
    if "array" in types and any(name in schema for name in _ARRAY_KEYWORDS):
        return True
    if "string" in types and _is_unsupported_string(schema):
        return True
    if "object" in types and (_has_unsupported_names(schema) or _has_unsupported_patterns(schema)):
        return True
    parts = schema.get("allOf")
    return isinstance(parts, list) and len(parts) >= 2


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("type")
    return {each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)}


def _is_unsupported_string(schema: Mapping[str, Any]) -> bool:
    name = schema.get("format")
    # vLLM fails on an unhashable format; here an unhashable format is handled as an unknown one.
    if "format" in schema and not (isinstance(name, str) and name in SUPPORTED_FORMATS):
        return True
    return _has_pattern_and_length(schema)


def _has_pattern_and_length(schema: Mapping[str, Any]) -> bool:
    return ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema)


def _has_unsupported_names(schema: Mapping[str, Any]) -> bool:
    if "propertyNames" not in schema:
        return False
    names = schema["propertyNames"]
    if isinstance(names, Mapping) and _has_pattern_and_length(names):
        return True
    return (
        "patternProperties" in schema or "properties" in schema or schema.get("unevaluatedProperties", True) is not True
    )


def _has_unsupported_patterns(schema: Mapping[str, Any]) -> bool:
    patterns = schema.get("patternProperties")
    return isinstance(patterns, Mapping) and ("properties" in schema or len(patterns) > 1)
