"""What latency models share that change or watch the steps of another one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class WrappedLatency:
    """`model` as it is: a subclass says what is different."""

    model: LatencyModel

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return self.model.decode_times(shape, steps)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.model.queueing_time(input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return self.model.output_token_time

    @property
    def output_sequence_time(self) -> Micros:
        return self.model.output_sequence_time

    @property
    def post_decode_time(self) -> Micros:
        return self.model.post_decode_time
