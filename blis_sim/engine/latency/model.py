"""The base of latency models, which turn the shape of a batch into microseconds."""

import math
from collections.abc import Callable, Sequence
from math import floor
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.compilation import mypyc_attr
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import MAX_MICROS, Micros

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blis_sim.engine.latency.decode_sums import DecodeSums


def checked_coefficients(name: str, values: tuple[float, ...], at_least: int, at_most: int) -> tuple[float, ...]:
    """`values`, when their number lies within the limits and each is finite and not negative; else EngineError."""
    if not at_least <= len(values) <= at_most:
        allowed = str(at_least) if at_least == at_most else f"{at_least} to {at_most}"
        raise EngineError(f"{name} must have {allowed} values, got {len(values)}")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise EngineError(f"{name} must be finite and at least 0, got {value}")
    return values


FewDecodesTimer: TypeAlias = Callable[[int, int, int], list[Micros]]
"""A function of the number of sequences that decode, the sum of their contexts and a number of steps, at least 1. It
returns `decode_times` of these steps. A list costs less than an array of few values."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LatencyModel:
    """Times of steps, and waits of a request outside of the steps. A subclass must have `step_time` alone.

    All results are whole microseconds where nothing else is said. Equal shapes always give equal times.
    """

    __slots__ = ()

    def step_time(self, shape: BatchShape) -> Micros:
        """Return the duration of one engine step, at least 1."""
        raise NotImplementedError(f"the latency model {type(self).__name__} has no step_time")

    def decode_times(self, shape: BatchShape, steps: int) -> "npt.NDArray[np.int64]":
        """Return the durations of `steps` consecutive decode-only steps that start from `shape`.

        Between two of them only `decode_context_tokens` grows, by `decode_requests`. Element k equals
        `step_time` of the shape after k such steps, to the microsecond.
        """
        import numpy as np

        context, sequences = shape.decode_context_tokens, shape.decode_requests
        grown = [context + step * sequences for step in range(steps)]
        times = [self.step_time(shape._replace(decode_context_tokens=each)) for each in grown]
        return np.array(times, dtype=np.int64)

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        """Return the duration of a forward pass in which each rank that shares experts computes the batch of its
        shape. By default each batch takes its own time, and the slowest counts."""
        return max([self.step_time(shape) for shape in shapes])

    # --- outside of the steps ---

    def queueing_time(self, input_tokens: int) -> Micros:
        """Return the time from arrival until the request enters the wait queue (tokenization, API server)."""
        return 0

    @property
    def output_token_time(self) -> Micros:
        """Added to each token after its step ends; it never delays the engine."""
        return 0

    @property
    def output_sequence_time(self) -> Micros:
        """Time added to each token for every token that its step produced: they are handed out in turn."""
        return 0

    @property
    def output_turn_us(self) -> float:
        """Time of the API server process to send one token; tokens are sent one after the other."""
        return 0.0

    @property
    def post_decode_time(self) -> Micros:
        """Added once after the last token; it never delays the engine."""
        return 0

    # --- a host that does not always work while a step executes ---

    def idle_start_time(self, idle_us: Micros) -> Micros:
        """Return the excess time of a step on a GPU that has been idle for `idle_us`. Nothing hides the work of the
        host before a step."""
        return 0

    @property
    def growth_requests(self) -> int:
        """How many requests a batch must have more than any before, to make the host wait until its step ends; 0 where
        no batch does."""
        return 0

    # --- the same times at less cost ---

    def step_timer(self) -> Callable[[BatchShape], Micros]:
        """Return `step_time`, or a function in its place that costs less to call."""
        return self.step_time

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return a function from the number of sequences that decode, and the sum of their contexts, to `step_time` of
        a step without prompts."""
        return lambda sequences, context: self.step_time(BatchShape(0, 0, 0, 0, 0, 0, sequences, context))

    def few_decodes_timer(self) -> FewDecodesTimer | None:
        """Return the function that times few steps of decodes at less cost than many; None without one."""
        return None

    @property
    def decode_sums(self) -> "DecodeSums":
        """The sums of decode steps, which a model may keep for all instances that share it; by default new ones."""
        from blis_sim.engine.latency.decode_sums import DecodeSums

        return DecodeSums()

    def queueing_timer(self) -> Callable[[int], Micros]:
        """Return `queueing_time`, or that of the innermost model that those around it pass the call on to."""
        return self.queueing_time

    def idle_start_timer(self) -> Callable[[Micros], Micros] | None:
        """Return `idle_start_time`; None where no idle time makes a step longer."""
        return None if type(self).idle_start_time is LatencyModel.idle_start_time else self.idle_start_time

    # --- operations and tables ---

    @property
    def operation_names(self) -> tuple[str, ...]:
        """The operations that steps are made of, in the order of the columns of `operation_metrics.csv`."""
        return ()

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each operation in one step, in milliseconds."""
        return ()

    extrapolation: ClassVar[str] = ""
    """How times go on beyond the tables of a model that has any."""

    def exceeded(self) -> list[str]:
        """Return a line for each figure of a batch that was beyond what the model knows."""
        return []

    def reset_maxima(self) -> None:
        """Forget how large the batches were, once the model has been probed."""


def whole_micros(value: float) -> Micros:
    """Truncate toward zero, at least 1; not-a-number and anything beyond 63 bits become the largest instant."""
    if not value < MAX_MICROS:
        return MAX_MICROS
    whole = floor(value)
    return whole if whole > 0 else 1
