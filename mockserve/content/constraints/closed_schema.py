"""Objects of a schema closed against members that it does not name, as `disable_additional_properties` closes them."""

from collections.abc import Mapping
from typing import Any

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_PARTS = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "additionalItems",
    "unevaluatedItems",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
    "items",
    "prefixItems",
    "allOf",
    "anyOf",
    "oneOf",
)


def without_further_members(schema: Any) -> Any:
    """`schema` with `additionalProperties` false wherever it names members and does not say."""
    if isinstance(schema, list):
        return [without_further_members(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in _MAPS:
        if isinstance(found.get(name), Mapping):
            found[name] = {key: without_further_members(each) for key, each in found[name].items()}
    for name in _PARTS:
        if name in found:
            found[name] = without_further_members(found[name])
    if any(isinstance(found.get(name), Mapping) for name in ("properties", "patternProperties")):
        found.setdefault("additionalProperties", False)
    return found
