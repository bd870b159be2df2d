"""Overheads of the CPU that are added to each step where they were measured: scheduling, inputs, sampling, outputs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.operators.tables import Line
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class WithCpu(WrappedLatency):
    """`model` with steps that last longer by `overhead`, in milliseconds over the requests of a step."""

    overhead: Line

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self._added_us(shape.num_requests)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps) + self._added_us(shape.decode_requests)
        return times

    def _added_us(self, num_requests: int) -> Micros:
        return round(self.overhead.at(num_requests) * 1e3) if num_requests else 0
