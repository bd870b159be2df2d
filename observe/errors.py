"""Errors of a measurement, and messages on standard error; standard output is kept for the result."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from blis_sim.options import BlisError
from blis_sim.options.printing import printable


class ObserveError(BlisError):
    """A server address, a workload or an output path that cannot be used."""


class RunError(Exception):
    """One clear line for what failed while running: a server out of reach, a full disk. Not the input's fault."""


class ResponseError(Exception):
    """The bytes that a server sent are no HTTP/1.1 response."""


_SHOWN: list[Callable[[str], str]] = []


@contextmanager
def messages_through(change: Callable[[str], str]) -> Iterator[None]:
    """Within a `with` block, all messages are printed as `change` returns them."""
    _SHOWN.append(change)
    try:
        yield
    finally:
        _SHOWN.remove(change)


def print_message(text: str) -> None:
    """Print one or several lines. A full log or a closed pipe does not stop the measurement."""
    for change in _SHOWN:
        text = change(text)
    text = printable(text)
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print one warning line."""
    print_message(f"warning: {text}")
