"""Errors of a benchmark that a user can cause."""

from blis_sim.options import BlisError


class BenchError(BlisError):
    """A benchmark cannot be run as asked, or its results cannot be written."""
