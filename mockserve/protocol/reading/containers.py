"""Types of the items of JSON lists and objects, and values of one of several types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mockserve.protocol.errors import MAX_LISTED_PROBLEMS, Problem
from mockserve.protocol.reading.types import FieldType, unicode_problem

OBJECT_MESSAGES = {
    "model_attributes_type": "Input should be a valid dictionary or object to extract fields from",
    "dict_type": "Input should be a valid dictionary",
    "dataclass_type": "Input should be a dictionary or an instance of {name}",
}


_UNLISTED = Problem("", "", "", None)
"""Placeholder of each problem that is only counted: the problems of a long list would take hundreds of megabytes."""


def key_problems(value: Mapping[str, Any], location: str) -> list[Problem]:
    """Return the problems with the names of an object's fields, known or not."""
    return [problem for key in value if (problem := unicode_problem(key, location)) is not None]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of items of one type, with `at_least` to `at_most` items."""

    items: FieldType
    at_most: int | None = None
    at_least: int = 0
    is_sequence: bool = False
    """Whether pydantic's type is a Sequence, which has another error message for values that are not lists."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, list):
            return [_no_sequence(value, location) if self.is_sequence else _no_list(value, location)]
        if len(value) < self.at_least:
            name, plural = "Value" if self.is_sequence else "List", "" if self.at_least == 1 else "s"
            message = f"{name} should have at least {self.at_least} item{plural} after validation, not {len(value)}"
            context = {"field_type": name, "min_length": self.at_least, "actual_length": len(value)}
            return [Problem("too_short", location, message, value, context)]
        if self.at_most is not None and len(value) > self.at_most:
            message = f"List should have at most {self.at_most} items after validation, not {len(value)}"
            context = {"field_type": "List", "max_length": self.at_most, "actual_length": len(value)}
            return [Problem("too_long", location, message, value, context)]
        found: list[Problem] = []
        for index, item in enumerate(value):
            wrong = self.items.problems(item, f"{location}.{index}")
            if wrong:
                found += wrong if len(found) <= MAX_LISTED_PROBLEMS else [_UNLISTED] * len(wrong)
        return found

    def schema(self) -> dict[str, Any]:
        bound = {} if self.at_most is None else {"maxItems": self.at_most}
        return {"type": "array", "items": self.items.schema(), **bound}


@dataclass(frozen=True, slots=True)
class TupleOf:
    """A list with one item of each type, in order."""

    items: tuple[FieldType, ...]

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, list):
            return [Problem("tuple_type", location, "Input should be a valid tuple", value)]
        most = len(self.items)
        if len(value) > most:
            message = f"Tuple should have at most {most} items after validation, not {len(value)}"
            context = {"field_type": "Tuple", "max_length": most, "actual_length": len(value)}
            return [Problem("too_long", location, message, value, context)]
        found: list[Problem] = []
        for index, kind in enumerate(self.items):
            place = f"{location}.{index}"
            if index < len(value):
                found += kind.problems(value[index], place)
            else:
                found.append(Problem("missing", place, "Field required", value))
        return found

    def schema(self) -> dict[str, Any]:
        size = {"maxItems": len(self.items), "minItems": len(self.items)}
        return {"type": "array", "prefixItems": [each.schema() for each in self.items], **size}


def _no_list(value: Any, location: str) -> Problem:
    return Problem("list_type", location, "Input should be a valid list", value)


def _no_sequence(value: Any, location: str) -> Problem:
    if isinstance(value, str):
        message = "'str' instances are not allowed as a Sequence value"
        return Problem("sequence_str", location, message, value, {"type_name": "str"})
    return Problem("is_instance_of", location, "Input should be an instance of Sequence", value, {"class": "Sequence"})


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with any keys and values of one type."""

    values: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, dict):
            return [Problem("dict_type", location, OBJECT_MESSAGES["dict_type"], value)]
        return [each for key, inner in value.items() for each in self.values.problems(inner, f"{location}.{key}")]

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.values.schema()}


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known fields, some of which are required; other fields are accepted.

    `kind` is pydantic's error type for a value that is not an object; `name` is part of the message for some kinds.
    Names of unknown fields must be text unless `ignores_unknown`.
    """

    fields: Mapping[str, FieldType]
    required: tuple[str, ...] = ()
    kind: str = "model_attributes_type"
    name: str = ""
    forbids_others: bool = False
    ignores_unknown: bool = False

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, dict):
            context = {"class_name": self.name} if self.name else None
            return [Problem(self.kind, location, OBJECT_MESSAGES[self.kind].format(name=self.name), value, context)]
        found: list[Problem] = []
        for name, kind in self.fields.items():
            if name in value:
                found += kind.problems(value[name], f"{location}.{name}")
            elif name in self.required:
                found.append(Problem("missing", f"{location}.{name}", "Field required", value))
        if self.forbids_others:
            message = "Extra inputs are not permitted"
            others = [(name, each) for name, each in value.items() if name not in self.fields]
            found += [Problem("extra_forbidden", f"{location}.{name}", message, each) for name, each in others]
        return found if self.ignores_unknown else found + key_problems(value, location)

    def schema(self) -> dict[str, Any]:
        properties = {name: kind.schema() for name, kind in self.fields.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": properties, **required}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A value of one of several types; a value of no type is reported for each type.

    `likely` names the probable type of an object by the text in its field `tag`. That type is tried first, since
    problems with types tried in vain cost most of the time; the order of reported problems remains that of `kinds`.
    """

    kinds: tuple[FieldType, ...]
    tag: str = ""
    likely: Mapping[str, FieldType] = field(default_factory=dict)

    def problems(self, value: Any, location: str) -> list[Problem]:
        if self.likely and isinstance(value, dict) and isinstance(tag := value.get(self.tag), str):
            kind = self.likely.get(tag)
            if kind is not None and not kind.problems(value, location):
                return []
        found: list[Problem] = []
        for kind in self.kinds:
            wrong = kind.problems(value, location)
            if not wrong:
                return []
            found += wrong
        return found

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


@dataclass(frozen=True, slots=True)
class Named:
    """One of several types, whose name is part of the location of its problems."""

    name: str
    inner: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        return self.inner.problems(value, f"{location}.{self.name}")

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object whose field `tag` names its type, which is part of the location of its problems."""

    tag: str
    kinds: Mapping[str, FieldType]

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, dict):
            message = OBJECT_MESSAGES["model_attributes_type"]
            return [Problem("model_attributes_type", location, message, value)]
        context = {"discriminator": repr(self.tag)}
        if self.tag not in value:
            message = f"Unable to extract tag using discriminator {self.tag!r}"
            return [Problem("union_tag_not_found", location, message, value, context)]
        found = value[self.tag]
        if not isinstance(found, str) or found not in self.kinds:
            expected = ", ".join(map(repr, self.kinds))
            message = (
                f"Input tag '{found}' found using {self.tag!r} does not match any of the expected tags: {expected}"
            )
            context |= {"tag": str(found), "expected_tags": expected}
            return [Problem("union_tag_invalid", location, message, value, context)]
        return self.kinds[found].problems(value, f"{location}.{found}")

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [kind.schema() for kind in self.kinds.values()]}


@dataclass(frozen=True, slots=True)
class ValidatedType:
    """A value of some type for which `error_of` returns None; `error_of` is called before the type check if
    `is_first`."""

    inner: FieldType
    error_of: Callable[[Any], str | None]
    is_first: bool = False

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = [] if self.is_first else self.inner.problems(value, location)
        error_of = None if wrong else self.error_of(value)
        if error_of is not None:
            context = {"error": ValueError(error_of)}
            return [Problem("value_error", location, f"Value error, {error_of}", value, context)]
        return self.inner.problems(value, location) if self.is_first else wrong

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(frozen=True, slots=True)
class Iterable:
    """A list whose items are checked only when they are used."""

    items: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        if isinstance(value, list | dict | str):
            return []
        return [Problem("iterable_type", location, "Input should be iterable", value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.items.schema()}


@dataclass(frozen=True, slots=True)
class Nullable:
    """A value of some type, or null."""

    inner: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        return [] if value is None else self.inner.problems(value, location)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}
