"""Errors of a measurement, and messages on standard error; standard output is kept for the result."""

import sys
from contextlib import suppress

from blis_sim.options import BlisError


class ObserveError(BlisError):
    """A server address, a workload or an output path that cannot be used."""


class RunError(Exception):
    """One clear line for what failed while running: a server out of reach, a full disk. Not the input's fault."""


class ResponseError(Exception):
    """The bytes that a server sent are no HTTP/1.1 response."""


def print_message(text: str) -> None:
    """Print one or several lines. A full log or a closed pipe does not stop the measurement."""
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print one warning line."""
    print_message(f"warning: {text}")
