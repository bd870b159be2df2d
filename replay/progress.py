"""How far a simulation is, for somebody who waits at a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """A progress bar on stderr when that is a terminal; what it yields is called once per finished request.

    `total` is how many there will be, None if nobody knows.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)
