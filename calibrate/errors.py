"""What can keep a recording and a simulation from being compared."""

from blis_sim.options import BlisError


class CalibrateError(BlisError):
    """Files that can be read, but have nothing in common or lack what is asked of them."""
