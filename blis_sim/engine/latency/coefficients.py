"""Checks the coefficients that a latency model is given."""

import math

from blis_sim.engine.errors import EngineError


def checked(name: str, values: tuple[float, ...], at_least: int, at_most: int) -> tuple[float, ...]:
    """`values`, when their number lies within the limits and each is finite and not negative; else EngineError."""
    if not at_least <= len(values) <= at_most:
        allowed = str(at_least) if at_least == at_most else f"{at_least} to {at_most}"
        raise EngineError(f"{name} must have {allowed} values, got {len(values)}")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise EngineError(f"{name} must be finite and at least 0, got {value}")
    return values
