"""The simplest latency models: none at all, a published toy, and a straight line through measured steps.

The toy is that of the adaptive scheduler's worker. A prompt takes 0.05 ms per token divided by the batch, and 0.2 ms. A
decode pass takes 0.1 ms per request, and 0.05 ms.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.model import FewDecodesTimer, LatencyModel, checked_coefficients, whole_micros
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class InstantLatency(LatencyModel):
    """No delays at all, for engines whose requests have set times."""

    def step_time(self, shape: BatchShape) -> Micros:
        return 1

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.ones(steps, dtype=np.int64)


_PROMPT_TOKEN_US, _PROMPT_US = 50, 200
_DECODE_US, _PASS_US = 100, 50


@dataclass(frozen=True, slots=True)
class AdaptiveToy(LatencyModel):
    """Step times that do not depend on model and GPU. Nothing but steps takes time."""

    def step_time(self, shape: BatchShape) -> Micros:
        prompt_us = decode_us = 0.0
        if shape.prefill_tokens:
            prompt_us = _PROMPT_TOKEN_US * shape.prefill_tokens / max(1, shape.num_requests) + _PROMPT_US
        if shape.decode_requests:
            decode_us = _DECODE_US * shape.decode_requests + _PASS_US
        return whole_micros(prompt_us + decode_us)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.full(steps, self.step_time(shape), dtype=np.int64)

    def few_decodes_timer(self) -> FewDecodesTimer:
        """Return a function that lists the time of one step `steps` times."""
        return lambda sequences, context, steps: [self.step_time(decodes(sequences, context))] * steps


@dataclass(frozen=True, slots=True)
class Blackbox(LatencyModel):
    """step = beta0 + beta1 * prefill tokens + beta2 * decode tokens, in microseconds.

    alpha0 + alpha1 * input tokens pass before a request enters the wait queue; alpha2 is added to each token.
    A call of `step_time` costs about 0.4 us.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    def __post_init__(self) -> None:
        checked_coefficients("alpha_coeffs", self.alpha, 3, 3)
        checked_coefficients("beta_coeffs", self.beta, 3, 3)

    def step_time(self, shape: BatchShape) -> Micros:
        prefill_tokens, decode_tokens = shape.prefill_tokens, shape.decode_requests
        if not prefill_tokens + decode_tokens:
            return 1
        base, per_prefill_token, per_decode_token = self.beta
        return whole_micros(base + per_prefill_token * prefill_tokens + per_decode_token * decode_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        """Return equal times: a growing context costs nothing here."""
        decode_only = BatchShape(decode_requests=shape.decode_requests)
        return np.full(steps, self.step_time(decode_only), dtype=np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return int(self.alpha[0] + self.alpha[1] * input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return int(self.alpha[2])

    @property
    def coefficients(self) -> tuple[float, ...]:
        return self.beta

    def basis(self, shape: BatchShape) -> tuple[float, ...]:
        """One, prefill tokens, decode tokens."""
        return (1.0, float(shape.prefill_tokens), float(shape.decode_requests))
