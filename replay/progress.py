"""Progress of a simulation on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """A progress bar on stderr when that is a terminal; what it yields is called once per finished request.

    `total` is the number of requests, None if it is unknown.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)
