"""Schemas reduced to the keywords that xgrammar reads, with values of the types that it reads."""

from collections.abc import Mapping
from typing import Any

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_PARTS = ("items", "additionalProperties", "propertyNames")


def with_read_keywords(schema: Any) -> Any:
    """`schema` as xgrammar understands it: what it ignores is left out, a remote reference allows everything."""
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    found: dict[str, Any] = {name: _map(schema[name]) for name in _MAPS if isinstance(schema.get(name), Mapping)}
    if reference is not None:
        is_local = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
        return {**found, "$ref": reference} if is_local else found
    for name in ("const", "enum"):
        if name in schema:
            return {**found, name: schema[name]}
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1:
        return {**found, "allOf": _list(parts)}
    found |= {name: _list(schema[name]) for name in _LISTS if isinstance(schema.get(name), list)}
    found |= {name: with_read_keywords(schema[name]) for name in _PARTS if isinstance(schema.get(name), Mapping | bool)}
    found |= {name: schema[name] for name in _NUMBERS if _is_number(schema.get(name))}
    found |= {name: schema[name] for name in _COUNTS if type(schema.get(name)) is int}
    found |= {name: schema[name] for name in ("pattern", "format") if isinstance(schema.get(name), str)}
    if isinstance(schema.get("required"), list):
        found["required"] = [each for each in schema["required"] if isinstance(each, str)]
    if schema.get("type"):
        found["type"] = schema["type"]
    return found


def _map(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: with_read_keywords(each) for name, each in members.items()}


def _list(parts: list[Any]) -> list[Any]:
    return [with_read_keywords(each) for each in parts]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
