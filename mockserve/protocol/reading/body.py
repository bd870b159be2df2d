"""Typed access to a JSON body or to single embedded fields, as lenient as pydantic: "3" is an integer, 1.5 is not."""

from collections.abc import Callable, Mapping
from json import JSONDecodeError, loads
from typing import Any, TypeVar

import orjson

from mockserve.protocol.errors import ApiError, Problem, bad_fields
from mockserve.protocol.reading.containers import Record
from mockserve.protocol.reading.long_json import LARGE_BYTES, MOST_VALUE_BYTES, loads_in_pieces, value_bytes
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    FieldType,
    as_integer,
    as_number,
    unicode_problem,
)
from mockserve.protocol.reading.types import as_flag as as_flag
from mockserve.protocol.reading.types import flag_problem as flag_problem
from mockserve.protocol.reading.types import integer_problem as integer_problem
from mockserve.protocol.reading.types import number_problem as number_problem

T = TypeVar("T")


class Fields:
    """Reads fields of one body and collects their problems, to report all of them at once.

    An absent or null field returns its default.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.problems: list[Problem] = []

    def integer(self, name: str, default: int | None = None) -> int | None:
        return default if self.body.get(name) is None else self._read(name, default, integer_problem, as_integer)

    def number(self, name: str, default: float | None = None) -> float | None:
        return default if self.body.get(name) is None else self._read(name, default, number_problem, as_number)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.body.get(name)
        if value is None or value is True or value is False:
            return default if value is None else value
        return bool(self._read(name, default, flag_problem, as_flag))

    def text(self, name: str) -> str | None:
        return None if self.body.get(name) is None else self._read(name, None, text_problem, str)

    def require(self, name: str) -> Any:
        """Return the raw value of a required field."""
        if name not in self.body:
            self.problems.append(Problem("missing", f"body.{name}", "Field required", self.body))
            return None
        return self.body[name]

    def check(self) -> None:
        """Raise ApiError if any field read so far has a problem."""
        if self.problems:
            raise bad_fields(self.problems)

    def _read(
        self,
        name: str,
        default: T | None,
        problem_of: Callable[[Any, str], Problem | None],
        convert: Callable[[Any], T],
    ) -> T | None:
        value = self.body.get(name)
        if value is None:
            return default
        problem = problem_of(value, f"body.{name}")
        if problem is not None:
            self.problems.append(problem)
            return default
        return convert(value)


def check_types(
    body: Mapping[str, Any],
    types: Mapping[str, FieldType],
    required: tuple[str, ...] = (),
    ignores_unknown: bool = False,
) -> None:
    """Raise ApiError naming every field of `body` that does not match `types`, in the order of `types`.

    Names of unknown fields must be text unless `ignores_unknown`.
    """
    # A loop costs half of what `all` does.
    for name, value in body.items():
        kind = types.get(name)
        if not name.isascii() if kind is None else kind.problems(value, name):
            break
    else:
        if all(name in body for name in required):
            return
    problems: list[Problem] = []
    for name, kind in types.items():
        if name in body:
            problems += kind.problems(body[name], f"body.{name}")
        elif name in required:
            problems.append(Problem("missing", f"body.{name}", "Field required", body))
    if not ignores_unknown:
        problems += [problem for name in body if (problem := unicode_problem(name, "body")) is not None]
    if problems:
        raise bad_fields(problems)


def check_record(body: Mapping[str, Any], record: Record) -> None:
    """Raise ApiError naming every part of `body` that does not match `record`."""
    problems = record.problems(body, "body")
    if problems:
        raise bad_fields(problems)


def text_problem(value: Any, location: str) -> Problem | None:
    """Return the problem of a `value` that is not a string, else None."""
    if isinstance(value, str):
        return None
    return Problem("string_type", location, "Input should be a valid string", value)


def list_problem(value: Any, location: str) -> Problem | None:
    """Return the problem of a `value` that is not a list, else None."""
    if isinstance(value, list):
        return None
    return Problem("list_type", location, "Input should be a valid list", value)


def parse_json(raw: bytes, num_kinds: int = 1) -> dict[str, Any]:
    """Return the JSON object in `raw`. Raises ApiError, with FastAPI's message, for any other value.

    A body that may have one of `num_kinds` types is refused once for each type.
    """
    if not raw:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    return _as_object(json_value(raw), num_kinds)


def _as_object(body: Any, num_kinds: int) -> dict[str, Any]:
    if body is None:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise bad_fields([Problem("model_attributes_type", "body", message, body)] * num_kinds)
    return body


def json_value(raw: bytes) -> Any:
    """Return the JSON value in `raw`. Raises ApiError, with FastAPI's message, for invalid JSON."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_leniently(raw)
    if isinstance(body, dict) and _has_large_number(body):
        return _parse_leniently(raw)  # which keeps whole numbers of any size whole
    return body


def parse_large_json(bodies: list[bytes], num_kinds: int = 1) -> dict[str, Any]:
    """Parse a large body like `parse_json`, in pieces between which other threads can run.

    The only item of `bodies` is removed from it. Raises ApiError, also for too many values.
    """
    if len(bodies[0]) <= LARGE_BYTES:
        return parse_json(bodies.pop(), num_kinds)
    return _as_object(_leniently(lambda: large_json(bodies)), num_kinds)


def large_json(bodies: list[bytes]) -> Any:
    """Parse a body like `json.loads`, in pieces between which other threads can run. Raises ApiError for too many
    values."""
    if len(bodies[0]) <= LARGE_BYTES:
        return loads(bodies.pop())
    if value_bytes(bodies[0]) > MOST_VALUE_BYTES:
        raise ApiError("Request Entity Too Large", status=413, kind="Request Entity Too Large")
    return loads_in_pieces(bodies)


def _has_large_number(body: Mapping[str, Any]) -> bool:
    for each in body.values():  # noqa: SIM110  # a loop costs a third of what `any` does
        if each.__class__ is float and abs(each) >= LARGEST_INT64:
            return True
    return False


def _parse_leniently(raw: bytes) -> Any:
    """Parse text that strict JSON refuses with the standard library; it also words the error."""
    return _leniently(lambda: loads(raw))


def _leniently(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except JSONDecodeError as error:
        context = {"error": error.msg}
        problem = Problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, context)
        raise bad_fields([problem]) from None
    except (ValueError, RecursionError):  # no UTF-8, a number of thousands of digits, lists within lists without end
        raise ApiError("There was an error parsing the body", is_bare=True) from None


def read_embedded(
    raw: bytes, is_json: bool, types: Mapping[str, FieldType], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of `types` that are present. Raises ApiError naming missing or invalid fields."""
    body = json_value(raw) if raw and is_json else None
    is_object = isinstance(body, dict)
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, kind in types.items():
        value = body.get(name) if isinstance(body, dict) else None
        location = f"body.{name}"
        if value is not None:
            problems += kind.problems(value, location)
            found[name] = value
        elif name in required or (body is not None and not is_object):
            problems.append(Problem("missing", location, "Field required", None))
    if problems:
        raise bad_fields(problems)
    return found
