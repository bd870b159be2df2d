"""The simplest latency model: a straight line through measured steps of one model on one GPU."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.coefficients import checked
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class Blackbox:
    """step = beta0 + beta1 * prefill tokens + beta2 * decode tokens, in microseconds.

    alpha0 + alpha1 * input tokens pass before a request enters the wait queue; alpha2 is added to each token.
    A call of `step_time` costs about 0.4 us.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    def __post_init__(self) -> None:
        checked("alpha_coeffs", self.alpha, 3, 3)
        checked("beta_coeffs", self.beta, 3, 3)

    def step_time(self, shape: BatchShape) -> Micros:
        prefill_tokens, decode_tokens = shape.prefill_tokens, shape.decode_requests
        if not prefill_tokens + decode_tokens:
            return 1
        base, per_prefill_token, per_decode_token = self.beta
        return whole_micros(base + per_prefill_token * prefill_tokens + per_decode_token * decode_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        """All the same: a growing context costs nothing here."""
        decode_only = BatchShape(decode_requests=shape.decode_requests)
        return np.full(steps, self.step_time(decode_only), dtype=np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return int(self.alpha[0] + self.alpha[1] * input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return int(self.alpha[2])

    @property
    def output_sequence_time(self) -> Micros:
        return 0

    @property
    def post_decode_time(self) -> Micros:
        return 0

    @property
    def coefficients(self) -> tuple[float, ...]:
        return self.beta

    def basis(self, shape: BatchShape) -> tuple[float, ...]:
        """One, prefill tokens, decode tokens."""
        return (1.0, float(shape.prefill_tokens), float(shape.decode_requests))
