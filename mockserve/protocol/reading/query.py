"""Typed access to a query string, as FastAPI reads it: the last of several values counts."""

from collections.abc import Mapping, Sequence

from mockserve.protocol.errors import Problem, bad_fields
from mockserve.protocol.reading.body import as_flag, flag_problem, integer_problem


def query_flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    """Raises ApiError for a word that is neither true nor false."""
    if name not in query:
        return default
    _refuse(flag_problem(query[name], f"query.{name}"))
    return as_flag(query[name])


def query_choice(query: Mapping[str, str], name: str, default: str, allowed: Sequence[str]) -> str:
    """Raises ApiError for a word that is not allowed."""
    found = query.get(name, default)
    if found not in allowed:
        _refuse(literal_problem(found, f"query.{name}", allowed))
    return found


def query_integer(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Raises ApiError for what is no integer, or out of bounds."""
    if name not in query:
        return default
    location, found = f"query.{name}", query[name]
    _refuse(integer_problem(found, location))
    number = int(found)
    if number < least:
        message = f"Input should be greater than or equal to {least}"
        _refuse(Problem("greater_than_equal", location, message, found, {"ge": least}))
    if number > most:
        message = f"Input should be less than or equal to {most}"
        _refuse(Problem("less_than_equal", location, message, found, {"le": most}))
    return number


def query_number(query: Mapping[str, str], name: str) -> int | None:
    """An integer of any size, if there is one. Raises ApiError for what is none."""
    if name not in query:
        return None
    _refuse(integer_problem(query[name], f"query.{name}"))
    return int(query[name])


def literal_problem(value: object, location: str, allowed: Sequence[str]) -> Problem:
    """`value` is none of the words that are allowed."""
    quoted = [repr(each) for each in allowed]
    expected = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return Problem("literal_error", location, f"Input should be {expected}", value, {"expected": expected})


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise bad_fields([problem])
