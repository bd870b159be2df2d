"""Whether a JSON schema is one, before anything is made of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from mockserve.content.json_scalars import check_format
from mockserve.content.json_schema import SchemaError, options_of, type_options
from mockserve.content.regex_parser import parse_regex

MOST_NESTED = 64

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_NUMBERS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains")


def check_schema(schema: Any) -> None:
    """Raise SchemaError, in the words of vLLM's compiler, or RegexError unless every part is a schema."""
    if nesting(schema) > MOST_NESTED:
        raise SchemaError(
            f"The JSON schema is nested too deeply: objects and arrays may nest at most {MOST_NESTED} levels"
        )
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            _check_one(found)
            pending.extend(_parts(found))
        elif not isinstance(found, bool):
            raise SchemaError("schema must be an object or a boolean")


def nesting(value: Any) -> int:
    """How deep objects and arrays are nested; no recursion, so that no depth is too deep for it."""
    deepest = 0
    pending = [(value, 1)]
    while pending:
        found, depth = pending.pop()
        if isinstance(found, Mapping | list):
            deepest = max(deepest, depth)
            parts = found.values() if isinstance(found, Mapping) else found
            pending.extend((each, depth + 1) for each in parts)
    return deepest


def _check_one(schema: Mapping[str, Any]) -> None:
    type_options(schema)
    for name in _MAPS:
        if not isinstance(schema.get(name, {}), Mapping):
            raise SchemaError(f"{name} must be an object")
    if not isinstance(schema.get("required", []), list):
        raise SchemaError("required must be an array")
    if schema.get("enum") == []:
        raise SchemaError("Unsatisfiable schema: anyOf is empty")
    options_of(schema)
    _check_bounds(schema)
    if isinstance(schema.get("pattern"), str):
        parse_regex(schema["pattern"])
    if "format" in schema and "string" in type_options(schema):
        check_format(schema["format"])


def _check_bounds(schema: Mapping[str, Any]) -> None:
    for name in _NUMBERS:
        if type(schema.get(name, 0)) is not int:
            raise SchemaError(f"{name} must be an integer")
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            raise SchemaError(f"Unsatisfiable schema: {low} ({least}) is greater than {high} ({most})")


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name in _MAPS:
        yield from schema.get(name, {}).values()
    for name in _LISTS:
        if not isinstance(schema.get(name, []), list):
            raise SchemaError(f"{name} must be an array")
        yield from schema.get(name, [])
    for name in _SINGLE:
        part = schema.get(name, True)
        if isinstance(part, list) and name == "items":
            yield from part
        else:
            yield part
