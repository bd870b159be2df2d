"""Errors that prevent the comparison of a recording with a simulation."""

from blis_sim.options import BlisError


class CalibrateError(BlisError):
    """Files that can be read, but have nothing in common or lack what is asked of them."""
