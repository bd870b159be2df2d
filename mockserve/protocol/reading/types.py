"""Types of a single JSON value, as lenient as pydantic is by default: "3" is an integer, 1.5 is not.

A type returns the problems of a value, with pydantic's messages, and its JSON schema.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mockserve.protocol.errors import Problem

TRUE_WORDS = frozenset({"true", "1", "yes", "on", "t", "y"})
FALSE_WORDS = frozenset({"false", "0", "no", "off", "f", "n"})
LARGEST_INT64 = 2**63 - 1
SMALLEST_INT64 = -(2**63)

_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*")
TOO_MANY_DIGITS = "Unable to parse input string as an integer, exceeded maximum size"
MAX_INTEGER_CHARS = 4300
"""Longer digit strings are refused unread."""


class FieldType(Protocol):
    """The type of a field."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        """Return the problems of `value`, found at `location`; an empty list if it is valid."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the exact values; pydantic accepts some more."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number, possibly within bounds."""

    at_least: int | None = None
    at_most: int | None = None
    above: int | None = None

    def problems(self, value: Any, location: str) -> list[Problem]:
        problem = integer_problem(value, location)
        if problem is None:
            problem = self._bound_problem(value, location)
        return [] if problem is None else [problem]

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.at_least, "maximum": self.at_most, "exclusiveMinimum": self.above}
        return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}

    def _bound_problem(self, value: Any, location: str) -> Problem | None:
        number = as_integer(value)
        if self.above is not None and number <= self.above:
            message = f"Input should be greater than {self.above}"
            return Problem("greater_than", location, message, value, {"gt": self.above})
        if self.at_least is not None and number < self.at_least:
            message = f"Input should be greater than or equal to {self.at_least}"
            return Problem("greater_than_equal", location, message, value, {"ge": self.at_least})
        if self.at_most is not None and number > self.at_most:
            message = f"Input should be less than or equal to {self.at_most}"
            return Problem("less_than_equal", location, message, value, {"le": self.at_most})
        return None


@dataclass(frozen=True, slots=True)
class Number:
    """A number, whole or not."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        problem = number_problem(value, location)
        return [] if problem is None else [problem]

    def schema(self) -> dict[str, Any]:
        return {"type": "number"}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        problem = flag_problem(value, location)
        return [] if problem is None else [problem]

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Null:
    """Null only."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        return [] if value is None else [Problem("none_required", location, "Input should be None", value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "null"}


@dataclass(frozen=True, slots=True)
class StrictFlag:
    """A boolean, without values that pydantic converts to one."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        if isinstance(value, bool):
            return []
        return [Problem("bool_type", location, "Input should be a valid boolean", value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text:
    """A string, possibly of bounded length. `kind` is "bytes" where pydantic's type is bytes.

    Half a surrogate pair is accepted, as in pydantic, unless the length of the string `is_bounded`.
    """

    kind: str = "string"
    max_chars: int | None = None
    min_chars: int = 0
    is_bounded: bool = False

    def problems(self, value: Any, location: str) -> list[Problem]:
        if isinstance(value, str):
            problem = unicode_problem(value, location) if self.is_bounded else None
            return self._length_problems(value, location) if problem is None else [problem]
        return [Problem(f"{self.kind}_type", location, f"Input should be a valid {self.kind}", value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}

    def _length_problems(self, value: str, location: str) -> list[Problem]:
        if self.max_chars is not None and len(value) > self.max_chars:
            message = f"String should have at most {_characters(self.max_chars)}"
            return [Problem("string_too_long", location, message, value, {"max_length": self.max_chars})]
        if len(value) < self.min_chars:
            message = f"String should have at least {_characters(self.min_chars)}"
            return [Problem("string_too_short", location, message, value, {"min_length": self.min_chars})]
        return []


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few strings."""

    choices: tuple[str, ...]

    def problems(self, value: Any, location: str) -> list[Problem]:
        if isinstance(value, str) and value in self.choices:
            return []
        if isinstance(value, str) and (problem := unicode_problem(value, location)) is not None:
            return [problem]
        quoted = [repr(each) for each in self.choices]
        expected = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
        context: Mapping[str, Any] = {"expected": expected}
        return [Problem("literal_error", location, f"Input should be {expected}", value, context)]

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)}


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value, which is checked where it is used."""

    def problems(self, _value: Any, _location: str) -> list[Problem]:
        return []

    def schema(self) -> dict[str, Any]:
        return {}


def integer_problem(value: Any, location: str) -> Problem | None:
    """Return the problem of a `value` that is not an integer, else None."""
    message = "Input should be a valid integer"
    if isinstance(value, int):
        return None
    if isinstance(value, str):
        return unicode_problem(value, location) or _digits_problem(value, location, message)
    if isinstance(value, float):
        if not math.isfinite(value):
            return Problem("finite_number", location, "Input should be a finite number", value)
        if value.is_integer():
            is_small = SMALLEST_INT64 <= value < LARGEST_INT64
            return None if is_small else Problem("int_parsing_size", location, TOO_MANY_DIGITS, value)
        return Problem("int_from_float", location, f"{message}, got a number with a fractional part", value)
    return Problem("int_type", location, message, value)


def _digits_problem(value: str, location: str, message: str) -> Problem | None:
    if len(value) > MAX_INTEGER_CHARS:
        return Problem("int_parsing_size", location, TOO_MANY_DIGITS, value)
    if _WHOLE_NUMBER.fullmatch(value):
        return None
    return Problem("int_parsing", location, f"{message}, unable to parse string as an integer", value)


def unicode_problem(value: str, location: str) -> Problem | None:
    """Return the problem of a string with half a surrogate pair, which has no UTF-8 form, else None."""
    if is_text(value):
        return None
    message = "Input should be a valid string, unable to parse raw data as a unicode string"
    return Problem("string_unicode", location, message, value)


def is_text(value: str) -> bool:
    """Whether a string can be encoded in UTF-8."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def number_problem(value: Any, location: str) -> Problem | None:
    """Return the problem of a `value` that is not a number, else None."""
    message = "Input should be a valid number"
    if isinstance(value, int | float):
        return None
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            if not is_text(value):
                return unicode_problem(value, location)
            return Problem("float_parsing", location, f"{message}, unable to parse string as a number", value)
        return None
    return Problem("float_type", location, message, value)


def flag_problem(value: Any, location: str) -> Problem | None:
    """Return the problem of a `value` that is not a boolean, else None."""
    message = "Input should be a valid boolean"
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return None
    if isinstance(value, str) and not is_text(value):
        return unicode_problem(value, location)
    unreadable = isinstance(value, str) and value.lower() not in TRUE_WORDS | FALSE_WORDS
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if unreadable or (is_whole and SMALLEST_INT64 <= value <= LARGEST_INT64):
        return Problem("bool_parsing", location, f"{message}, unable to interpret input", value)
    return None if isinstance(value, str) else Problem("bool_type", location, message, value)


def as_integer(value: Any) -> int:
    """Convert a value that `integer_problem` accepts."""
    return int(value.replace("_", "").partition(".")[0]) if isinstance(value, str) else int(value)


def as_number(value: Any) -> float:
    """Convert a value that `number_problem` accepts; a number beyond the range of floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_flag(value: Any) -> bool:
    """Convert a value that `flag_problem` accepts."""
    return value.lower() in TRUE_WORDS if isinstance(value, str) else bool(value)


def flag_or(value: Any, default: bool) -> bool:
    """Convert a value that is null, or that `flag_problem` accepts."""
    return default if value is None else as_flag(value)


def _characters(number: int) -> str:
    return f"{number} character{'' if number == 1 else 's'}"
