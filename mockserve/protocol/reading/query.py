"""Typed access to a query string, as FastAPI reads it: the last of several values counts, and all problems are told."""

from collections.abc import Mapping, Sequence

from mockserve.protocol.errors import Problem, bad_fields
from mockserve.protocol.reading.body import as_flag, flag_problem, integer_problem


class QueryFields:
    """Reads fields of one query string and remembers what was wrong, so that `check` reports all problems at once.

    A field that is absent or wrong gives its default.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        self._given = dict(query.items())
        self._problems: list[Problem] = []

    def flag(self, name: str, default: bool) -> bool:
        """Return whether a word means true."""
        found = self._given.get(name)
        if found is None or self._is_wrong(flag_problem(found, f"query.{name}")):
            return default
        return as_flag(found)

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the words that are allowed."""
        found = self._given.get(name, default)
        problem = None if found in allowed else literal_problem(found, f"query.{name}", allowed)
        return default if self._is_wrong(problem) else found

    def number(self, name: str) -> int | None:
        """Return an integer of any size, if there is one."""
        found = self._given.get(name)
        if found is None or self._is_wrong(integer_problem(found, f"query.{name}")):
            return None
        return int(found)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """Return an integer within bounds."""
        number = self.number(name)
        if number is None:
            return default
        location, found = f"query.{name}", self._given[name]
        problem = None
        if number < least:
            message = f"Input should be greater than or equal to {least}"
            problem = Problem("greater_than_equal", location, message, found, {"ge": least})
        elif number > most:
            message = f"Input should be less than or equal to {most}"
            problem = Problem("less_than_equal", location, message, found, {"le": most})
        return default if self._is_wrong(problem) else number

    def check(self) -> None:
        """Raise ApiError if any field read so far was wrong."""
        if self._problems:
            raise bad_fields(self._problems)

    def _is_wrong(self, problem: Problem | None) -> bool:
        if problem is not None:
            self._problems.append(problem)
        return problem is not None


def literal_problem(value: object, location: str, allowed: Sequence[str]) -> Problem:
    """`value` is none of the words that are allowed."""
    quoted = [repr(each) for each in allowed]
    expected = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return Problem("literal_error", location, f"Input should be {expected}", value, {"expected": expected})
