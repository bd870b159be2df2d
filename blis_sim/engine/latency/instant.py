"""No latency at all outside of a request's own timing."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class InstantLatency:
    """For engines whose requests are timed one by one: nothing is queued, overlapped or delayed besides."""

    def step_time(self, shape: BatchShape) -> Micros:
        return 1

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.ones(steps, dtype=np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return 0

    @property
    def output_token_time(self) -> Micros:
        return 0

    @property
    def output_sequence_time(self) -> Micros:
        return 0

    @property
    def post_decode_time(self) -> Micros:
        return 0
