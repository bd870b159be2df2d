"""The published formulas of the adaptive scheduler's worker: a prompt is shared out over its batch, decodes add up.

A prompt takes 0.05 ms per token divided by the batch, and 0.2 ms; a decode pass 0.1 ms per request, and 0.05 ms.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.decode_steps import TimesFewDecodes
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.units import Micros

_PROMPT_TOKEN_US, _PROMPT_US = 50, 200
_DECODE_US, _PASS_US = 100, 50


@dataclass(frozen=True, slots=True)
class AdaptiveToy:
    """Times whatever model and GPU alike. Nothing but steps takes time."""

    output_token_time: Micros = 0
    output_sequence_time: Micros = 0
    post_decode_time: Micros = 0

    def step_time(self, shape: BatchShape) -> Micros:
        prompt_us = decode_us = 0.0
        if shape.prefill_tokens:
            prompt_us = _PROMPT_TOKEN_US * shape.prefill_tokens / max(1, shape.num_requests) + _PROMPT_US
        if shape.decode_requests:
            decode_us = _DECODE_US * shape.decode_requests + _PASS_US
        return whole_micros(prompt_us + decode_us)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.full(steps, self.step_time(shape), dtype=np.int64)

    def few_decodes_timer(self) -> TimesFewDecodes:
        """Return a function whose list has the time of one step as often as asked for."""
        return lambda sequences, context, steps: [self.step_time(decodes(sequences, context))] * steps

    def queueing_time(self, input_tokens: int) -> Micros:
        return 0
