"""The error of a file that was recorded or written by hand."""

from blis_sim.options import BlisError


class TraceError(BlisError):
    """A file that cannot be read or written: names file and place, what was found and what is allowed."""
