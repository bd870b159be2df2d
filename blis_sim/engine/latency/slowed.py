"""A latency model whose steps take longer than they should, by a factor that may change between steps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class SlowedLatency(WrappedLatency):
    """`model` with steps `factor` times as long; what is outside of steps takes its time."""

    factor: float = 1.0

    def step_time(self, shape: BatchShape) -> Micros:
        time = self.model.step_time(shape)
        return time if self.factor == 1.0 else whole_micros(time * self.factor)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times = self.model.decode_times(shape, steps)
        if self.factor == 1.0:
            return times
        return np.array([whole_micros(time * self.factor) for time in times.tolist()], dtype=np.int64)
