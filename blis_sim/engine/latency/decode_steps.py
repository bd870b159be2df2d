"""Timing of many decode-only steps at once, for every latency model."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.units import MAX_MICROS

Floats: TypeAlias = npt.NDArray[np.float64]
"""One value per step, in float64 like Python's float, so both ways of computing agree to the last bit."""


def context_at_each_step(shape: BatchShape, steps: int) -> Floats:
    """The context sum before each of `steps` decode-only steps: it grows by one token per sequence and step."""
    grown = np.arange(steps, dtype=np.float64)
    grown *= shape.decode_requests
    grown += shape.decode_context_tokens
    return grown


def whole_micros_each(values: Floats) -> npt.NDArray[np.int64]:
    """`whole_micros` of each value."""
    if len(values) and not values.max() < MAX_MICROS:
        return np.array([whole_micros(value) for value in values.tolist()], dtype=np.int64)
    whole: npt.NDArray[np.int64] = values.astype(np.int64)
    return np.maximum(whole, 1, out=whole)
