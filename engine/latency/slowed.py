"""A latency model whose steps take longer than they should, by a factor that may change between steps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.batch_shape import BatchShape
from engine.latency.model import LatencyModel, whole_micros
from engine.units import Micros


@dataclass(slots=True)
class SlowedLatency:
    """`inner` with steps `factor` times as long; what is outside of steps takes its time."""

    inner: LatencyModel
    factor: float = 1.0

    def step_time(self, shape: BatchShape) -> Micros:
        time = self.inner.step_time(shape)
        return time if self.factor == 1.0 else whole_micros(time * self.factor)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times = self.inner.decode_times(shape, steps)
        if self.factor == 1.0:
            return times
        return np.array([whole_micros(time * self.factor) for time in times.tolist()], dtype=np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.inner.queueing_time(input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return self.inner.output_token_time

    @property
    def output_sequence_time(self) -> Micros:
        return self.inner.output_sequence_time

    @property
    def post_decode_time(self) -> Micros:
        return self.inner.post_decode_time
