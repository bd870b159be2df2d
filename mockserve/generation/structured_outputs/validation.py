"""Validation of a value against a JSON schema, where both may come from a client.

References to other documents are never retrieved. Patterns are matched in time proportional to the text.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import re2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, ValidationError
from jsonschema.validators import extend
from referencing import Registry, Resource

type_error = Draft202012Validator.VALIDATORS["type"]

_QUIET = re2.Options()
_QUIET.log_errors = False

_IN_PLACE = ("allOf", "anyOf", "oneOf")

MOST_FRAMES = sys.getrecursionlimit() // 2
"""Depth of the call stack at which no further reference is resolved.

The library that resolves references panics at the interpreter's own limit, which `except Exception` does not catch.
"""


def contains_match(pattern: str, text: str) -> bool:
    """Whether a pattern matches within a text. Raises ValueError for a pattern that RE2 does not support."""
    try:
        return re2.compile(pattern, _QUIET).search(text) is not None
    except re2.error as error:
        raise ValueError(f"cannot match {pattern!r}: {error}") from None


def new_validator(schema: Any) -> Any:
    """Create a validator, which accepts what a pattern that RE2 does not support, or a type that is none, refuses.

    `is_valid` raises for a schema that it cannot apply for another reason.
    """
    return _LinearValidator(schema, registry=_NOTHING_ELSE)


def _retrieve_nothing(uri: str) -> Resource[Any]:
    raise LookupError(uri)


_NOTHING_ELSE: Registry[Any] = Registry(retrieve=_retrieve_nothing)  # type: ignore[call-arg]  # made by attrs


def _check_reference(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    _check_stack()
    yield from validator._validate_reference(ref=reference, instance=instance)


def _check_stack() -> None:
    """Raise RecursionError for references that are too deep, such as a schema that refers to itself in its `not`."""
    try:
        sys._getframe(MOST_FRAMES)
    except ValueError:
        return
    raise RecursionError("references without end")


def _check_pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _may_match(pattern, instance):
        yield ValidationError("another pattern")


def _may_match(pattern: str, text: str) -> bool:
    try:
        return contains_match(pattern, text)
    except ValueError:
        return True


def _check_type(validator: Any, types: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    with suppress(UnknownType):
        yield from type_error(validator, types, instance, schema)


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for pattern, each in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if contains_match(pattern, name):
                yield from validator.descend(value, each)


def _additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for name in instance if isinstance(instance, dict) else ():
        if not _is_named(name, schema):
            yield from validator.descend(instance[name], additional)


def _unevaluated_properties(validator: Any, unevaluated: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for name in instance.keys() - set(_evaluated_members(validator, instance, schema, is_outermost=True)):
            yield from validator.descend(instance[name], unevaluated)


def _is_named(name: str, schema: Mapping[str, Any]) -> bool:
    patterns = schema.get("patternProperties", {})
    return name in schema.get("properties", {}) or any(contains_match(each, name) for each in patterns)


def _evaluated_members(
    validator: Any, instance: Mapping[str, Any], schema: Any, is_outermost: bool = False
) -> Iterable[str]:
    """Return the members of an object that a schema evaluates, itself or by way of another."""
    if not isinstance(schema, Mapping):
        return
    for name in ("$ref", "$dynamicRef"):
        if name in schema:
            _check_stack()
            found = validator._resolver.lookup(schema[name])
            beyond = validator.evolve(schema=found.contents, _resolver=found.resolver)
            yield from _evaluated_members(beyond, instance, found.contents)
    takes_all = "additionalProperties" in schema or ("unevaluatedProperties" in schema and not is_outermost)
    yield from (name for name in instance if takes_all or _is_named(name, schema))
    for each in _applied_schemas(validator, instance, schema):
        yield from _evaluated_members(validator, instance, each)


def _applied_schemas(validator: Any, instance: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas within a schema that apply to the object itself."""
    for name, each in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield each
    for keyword in _IN_PLACE:
        yield from (each for each in schema.get(keyword, ()) if validator.evolve(schema=each).is_valid(instance))
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        yield from [schema["if"]] if holds else []
        branch = "then" if holds else "else"
        yield from [schema[branch]] if branch in schema else []


_LinearValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "$ref": _check_reference,
        "$dynamicRef": _check_reference,
        "type": _check_type,
        "pattern": _check_pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
    },
)
