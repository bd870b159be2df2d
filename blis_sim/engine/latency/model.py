"""The seam between the scheduler and time: a latency model turns a batch shape into microseconds."""

from typing import TYPE_CHECKING, Protocol

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_MICROS: Micros = 2**63 - 1


class LatencyModel(Protocol):
    """Times of steps, and waits of a request outside of the steps.

    All results are whole microseconds. Equal shapes always give equal times.
    """

    def step_time(self, shape: BatchShape) -> Micros:
        """Duration of one engine step, at least 1."""
        ...

    def decode_times(self, shape: BatchShape, steps: int) -> "npt.NDArray[np.int64]":
        """Durations of `steps` consecutive decode-only steps that start from `shape`.

        Between two of them only `decode_context_tokens` grows, by `decode_requests`. Element k equals
        `step_time` of the shape after k such steps, to the microsecond.
        """
        ...

    def queueing_time(self, input_tokens: int) -> Micros:
        """From arrival until the request enters the wait queue (tokenization, API server)."""
        ...

    @property
    def output_token_time(self) -> Micros:
        """Added to each token after its step ends; it never delays the engine."""
        ...

    @property
    def output_sequence_time(self) -> Micros:
        """Time added to each token for every token that its step produced: they are handed out in turn."""
        ...

    @property
    def post_decode_time(self) -> Micros:
        """Added once after the last token; it never delays the engine."""
        ...


def whole_micros(value: float) -> Micros:
    """Truncate toward zero, at least 1; not-a-number and anything beyond 63 bits become the largest instant."""
    if not value < MAX_MICROS:
        return MAX_MICROS
    return max(1, int(value))
