"""Whether a JSON schema is one, before anything is made of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from mockserve.generation.structured_outputs.json_schema import SchemaError, check_format, options_of, type_options
from mockserve.generation.structured_outputs.regex_parser import parse_regex

MOST_NESTED = 64
TOO_DEEP = f"The JSON schema is nested too deeply: objects and arrays may nest at most {MOST_NESTED} levels"

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

_KINDS: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    ((*_MAPS, "dependentRequired"), (Mapping,), "an object"),
    ((*_LISTS, "enum", "required"), (list,), "an array"),
    (("pattern", "format", "$ref"), (str,), "a string"),
    (_COUNTS, (int,), "an integer"),
    (_NUMBERS, (int, float, bool), "a number"),
)
"""Keywords by what their values must be. Older drafts had booleans for exclusive bounds, which have no effect here."""


def check_schema(schema: Any) -> None:
    """Raise SchemaError, in the words of vLLM's compiler, or RegexError unless every part is a schema."""
    if nesting(schema) > MOST_NESTED:
        raise SchemaError(TOO_DEEP)
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            _check_one(found)
            pending.extend(_parts(found))
        elif not isinstance(found, bool):
            raise SchemaError("schema must be an object or a boolean")


def nesting(value: Any) -> int:
    """Return how deep objects and arrays are nested; no recursion, so that no depth is too deep for it."""
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
    for names, kinds, expected in _KINDS:
        for name in names:
            if name in schema and not isinstance(schema[name], kinds):
                raise SchemaError(f"{name} must be {expected}")
    if not all(isinstance(name, str) for name in schema.get("required", [])):
        raise SchemaError("required must be an array of strings")
    if schema.get("enum") == []:
        raise SchemaError("Unsatisfiable schema: anyOf is empty")
    options_of(schema)
    _check_bounds(schema)
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", {})):
        parse_regex(pattern)
    if "format" in schema and "string" in type_options(schema):
        check_format(schema["format"])


def _check_bounds(schema: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        if isinstance(schema.get(name), bool) or schema.get(name, 0) < 0:
            raise SchemaError(f"{name} must not be negative")
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if least is not None and most is not None and least > most:
            raise SchemaError(f"Unsatisfiable schema: {low} ({least}) is greater than {high} ({most})")


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name in _MAPS:
        yield from schema.get(name, {}).values()
    for name in _LISTS:
        yield from schema.get(name, [])
    for name in _SINGLE:
        part = schema.get(name, True)
        if isinstance(part, list) and name == "items":
            yield from part
        else:
            yield part
