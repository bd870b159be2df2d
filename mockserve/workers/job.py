"""A piece of work that is done in place when it is small, and in a worker process when it is not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """A function, which must be a module's own for a worker to find it, and its arguments.

    `is_small`: the job takes a few milliseconds at most, whatever its arguments say.
    """

    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    is_small: bool

    def done(self) -> Result:
        """The result, made here and now."""
        return self.function(*self.arguments)
