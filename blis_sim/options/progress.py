"""Progress bars on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["KeptNotes", "NoteCallback", "Progress", "no_progress", "progress_bar"]


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """Show a progress bar on stderr when that is a terminal; the function that it yields is called after each part.

    `total` is the number of parts, None if it is unknown.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


NoteCallback: TypeAlias = Callable[[str], None]
"""Takes a note on a run, one line."""


@dataclass(frozen=True, slots=True)
class KeptNotes:
    """Notes that are passed on as they come, and kept."""

    on_note: NoteCallback
    notes: list[str] = field(default_factory=list)

    def __call__(self, note: str) -> None:
        """Take a note."""
        self.notes.append(note)
        self.on_note(note)


Progress: TypeAlias = Callable[[str, int | None], AbstractContextManager[Callable[[], None] | None]]
"""Takes a label and a total, as `progress_bar` does."""


@contextmanager
def no_progress(_label: str, _total: int | None) -> Iterator[None]:
    """Show nothing, in place of `progress_bar`."""
    yield None
