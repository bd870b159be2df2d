"""Typed access to a JSON body, as lenient as pydantic is by default: "3" is an integer, 1.5 is not."""

from collections.abc import Callable
from json import JSONDecodeError, loads
from typing import Any, TypeVar

import orjson

from mockserve.protocol.errors import ApiError, Problem, bad_fields

T = TypeVar("T")

TRUE_WORDS = frozenset({"true", "1", "yes", "on", "t", "y"})
FALSE_WORDS = frozenset({"false", "0", "no", "off", "f", "n"})


class Fields:
    """Reads fields of one body and remembers what was wrong, so that all problems are reported at once.

    A field that is absent or null gives its default.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.problems: list[Problem] = []

    def integer(self, name: str, default: int | None = None) -> int | None:
        return self._read(name, default, integer_problem, int)

    def number(self, name: str, default: float | None = None) -> float | None:
        return self._read(name, default, number_problem, float)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self._read(name, default, flag_problem, as_flag))

    def text(self, name: str) -> str | None:
        return self._read(name, None, text_problem, str)

    def require(self, name: str) -> Any:
        """The raw value of a field that must be there."""
        if name not in self.body:
            self.problems.append(Problem("missing", f"body.{name}", "Field required", self.body))
            return None
        return self.body[name]

    def check(self) -> None:
        """Raise ApiError if any field read so far was wrong."""
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


def parse_json(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises ApiError for anything else, in the words FastAPI uses."""
    if not raw:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _parse_leniently(raw)
    if body is None:
        raise bad_fields([Problem("missing", "body", "Field required", None)])
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise bad_fields([Problem("model_attributes_type", "body", message, body)])
    return body


def _parse_leniently(raw: bytes) -> Any:
    """What the standard library makes of text that strict JSON refuses; it also words the error."""
    try:
        return loads(raw)
    except JSONDecodeError as error:
        context = {"error": error.msg}
        problem = Problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, context)
        raise bad_fields([problem]) from None
    except (UnicodeDecodeError, RecursionError):
        raise ApiError("There was an error parsing the body", kind="Bad Request") from None


def integer_problem(value: Any, location: str) -> Problem | None:
    """Why `value` is no integer, or None if it is one."""
    message = "Input should be a valid integer"
    if isinstance(value, int):
        return None
    if isinstance(value, float):
        if value.is_integer():
            return None
        return Problem("int_from_float", location, f"{message}, got a number with a fractional part", value)
    if isinstance(value, str):
        if _parses(int, value):
            return None
        return Problem("int_parsing", location, f"{message}, unable to parse string as an integer", value)
    return Problem("int_type", location, message, value)


def number_problem(value: Any, location: str) -> Problem | None:
    """Why `value` is no number, or None if it is one."""
    message = "Input should be a valid number"
    if isinstance(value, int | float):
        return None
    if isinstance(value, str):
        if _parses(float, value):
            return None
        return Problem("float_parsing", location, f"{message}, unable to parse string as a number", value)
    return Problem("float_type", location, message, value)


def flag_problem(value: Any, location: str) -> Problem | None:
    """Why `value` is neither true nor false, or None if it is."""
    message = "Input should be a valid boolean"
    if isinstance(value, bool) or value in (0, 1):
        return None
    if isinstance(value, str):
        if value.lower() in TRUE_WORDS | FALSE_WORDS:
            return None
        return Problem("bool_parsing", location, f"{message}, unable to interpret input", value)
    return Problem("bool_type", location, message, value)


def text_problem(value: Any, location: str) -> Problem | None:
    """Why `value` is no string, or None if it is one."""
    if isinstance(value, str):
        return None
    return Problem("string_type", location, "Input should be a valid string", value)


def list_problem(value: Any, location: str) -> Problem | None:
    """Why `value` is no list, or None if it is one."""
    if isinstance(value, list):
        return None
    return Problem("list_type", location, "Input should be a valid list", value)


def as_flag(value: Any) -> bool:
    """The truth of a value that `flag_problem` accepted."""
    return value.lower() in TRUE_WORDS if isinstance(value, str) else bool(value)


def _parses(convert: Callable[[str], Any], value: str) -> bool:
    try:
        convert(value)
    except ValueError:
        return False
    return True
