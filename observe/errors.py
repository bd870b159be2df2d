"""Errors of a measurement."""

from blis_sim.options import BlisError


class ObserveError(BlisError):
    """A server address, a workload or an output path that cannot be used."""


class RunError(Exception):
    """One clear line for what failed while running: a server out of reach, a full disk. Not the input's fault."""


class ResponseError(Exception):
    """The bytes that a server sent are no HTTP/1.1 response."""
