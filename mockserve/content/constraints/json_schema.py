"""Reading JSON schemas: references, combinations, and what is wrong with one, in the words of vLLM's compiler."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

Schema: TypeAlias = Mapping[str, Any] | bool

TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
MOST_NESTED = 64

HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that say which type a schema without `type` is about."""

LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class SchemaError(ValueError):
    """A schema that is none, or that nothing can satisfy."""


class LoopError(SchemaError):
    """A reference that leads back to itself."""


def resolved(schema: Schema, root: Schema) -> dict[str, Any]:
    """The schema with its references replaced by what they name and `allOf` merged in.

    Raises SchemaError for one that leads nowhere or round in a circle.
    """
    found = _as_mapping(schema)
    for _ in range(MOST_NESTED):
        if "$ref" in found:
            target = follow(found["$ref"], root)
            found = merged(_as_mapping(target), {key: value for key, value in found.items() if key != "$ref"})
        elif "allOf" in found:
            parts = found.pop("allOf")
            for part in _listed(parts, "allOf"):
                found = merged(found, resolved(part, root))
        else:
            return found
    raise LoopError("Unsatisfiable schema: a reference that leads back to itself")


def follow(reference: Any, root: Schema) -> Schema:
    """What a reference within the document names."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaError(f"Failed to resolve reference: {reference}")
    if len(reference) > 1 and reference[1] != "/":
        return _anchored(reference[1:], root)
    found: Any = root
    for name in reference[1:].split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            raise SchemaError(f"Pointer '{reference[1:]}' does not exist")
    if not isinstance(found, Mapping | bool):
        raise SchemaError(f"Pointer '{reference[1:]}' is no schema")
    return found


def _anchored(name: str, root: Schema) -> Schema:
    """The schema that has this `$anchor`."""
    pending: list[Any] = [root]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            if found.get("$anchor") == name:
                return found
            pending.extend(found.values())
        elif isinstance(found, list):
            pending.extend(found)
    raise SchemaError(f"Failed to resolve reference: #{name}")


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that asks for what both ask."""
    both = {**first, **second}
    if "type" in first and "type" in second:
        both["type"] = _common_type(first["type"], second["type"])
    if "properties" in first and "properties" in second:
        both["properties"] = _merged_properties(first["properties"], second["properties"])
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    if "enum" in first and "enum" in second:
        both["enum"] = [each for each in first["enum"] if each in second["enum"]]
    if "allOf" in first and "allOf" in second:
        both["allOf"] = [*first["allOf"], *second["allOf"]]
    for name in LOWER_BOUNDS:
        if name in first and name in second:
            both[name] = max(first[name], second[name])
    for name in UPPER_BOUNDS:
        if name in first and name in second:
            both[name] = min(first[name], second[name])
    return both


def type_options(schema: Mapping[str, Any]) -> Sequence[str]:
    """The types a value may have. Raises SchemaError for a type that there is not."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    if isinstance(names, list):
        for name in names:
            if name not in TYPES:
                raise SchemaError(f"Invalid type: {name}")
        if not names:
            raise SchemaError("Unsatisfiable schema: incompatible types")
        return names
    if given is not None:
        raise SchemaError("type must be a string or array")
    return [name for name, hints in HINTS.items() if any(hint in schema for hint in hints)] or ["string"]


def options_of(schema: Mapping[str, Any]) -> list[Schema] | None:
    """The alternatives of `anyOf` or `oneOf`, each with all else the schema asks."""
    for name in ("anyOf", "oneOf"):
        if name in schema:
            rest = {key: value for key, value in schema.items() if key != name}
            options = [option for option in _listed(schema[name], name) if option is not False]
            return [_alternative(rest, option) for option in options]
    return None


def _alternative(rest: Mapping[str, Any], option: Schema) -> Schema:
    if not rest or option is True:
        return rest if option is True else option
    # Merged only once its references are resolved: a reference stands for a whole schema.
    return {"allOf": [dict(rest), option]}


def _common_type(first: Any, second: Any) -> list[str]:
    def listed(given: Any) -> list[str]:
        return [given] if isinstance(given, str) else list(given)

    one, other = listed(first), listed(second)
    common = [each for each in one if each in other]
    if "integer" in (*one, *other) and "number" in (*one, *other) and "integer" not in common:
        common.append("integer")
    if not common:
        raise SchemaError("Unsatisfiable schema: incompatible types")
    return common


def _merged_properties(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {**first, **second}
    for name in first.keys() & second.keys():
        both[name] = {"allOf": [first[name], second[name]]}
    return both


def _as_mapping(schema: Schema) -> dict[str, Any]:
    if schema is False:
        raise SchemaError("Unsatisfiable schema: schema is false")
    if not isinstance(schema, Mapping | bool):
        raise SchemaError("schema must be an object or a boolean")
    return dict(schema) if isinstance(schema, Mapping) else {}


def _listed(value: Any, name: str) -> Iterable[Schema]:
    if not isinstance(value, list):
        raise SchemaError(f"{name} must be an array")
    if not value:
        raise SchemaError(f"Unsatisfiable schema: {name} is empty")
    return value
