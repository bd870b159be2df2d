"""Progress of a simulation on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from blis_sim.options.progress import progress_bar

__all__ = ["Progress", "Say", "no_progress", "progress_bar"]

Say: TypeAlias = Callable[[str], None]
"""Takes a note on a run, one line."""
Progress: TypeAlias = Callable[[str, int | None], AbstractContextManager[Callable[[], None] | None]]
"""Takes a label and a total, as `progress_bar` does."""


@contextmanager
def no_progress(_label: str, _total: int | None) -> Iterator[None]:
    """Show nothing, in place of `progress_bar`."""
    yield None
