"""Errors of users about an engine."""

from blis_sim.options import BlisError


class EngineError(BlisError):
    """A model, a GPU or an engine setting that cannot work."""
