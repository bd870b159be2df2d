"""The interface of latency models, which turn the shape of a batch into microseconds."""

import math
from collections.abc import Callable
from math import floor
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def checked_coefficients(name: str, values: tuple[float, ...], at_least: int, at_most: int) -> tuple[float, ...]:
    """`values`, when their number lies within the limits and each is finite and not negative; else EngineError."""
    if not at_least <= len(values) <= at_most:
        allowed = str(at_least) if at_least == at_most else f"{at_least} to {at_most}"
        raise EngineError(f"{name} must have {allowed} values, got {len(values)}")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise EngineError(f"{name} must be finite and at least 0, got {value}")
    return values


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
        """Return the time from arrival until the request enters the wait queue (tokenization, API server)."""
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
    whole = floor(value)
    return whole if whole > 0 else 1


@runtime_checkable
class HasHostTimes(Protocol):
    """A latency model of a server whose host does not always work while a step executes."""

    def idle_start_time(self, idle_us: Micros) -> Micros:
        """Return how much longer a step takes on a GPU that has been idle for `idle_us`: nothing hides the work of the
        host before a step."""
        ...

    @property
    def growth_requests(self) -> int:
        """Return how many requests a batch must have more than any before, to make the host wait until its step ends; 0
        where no batch does."""
        ...

    @property
    def output_turn_us(self) -> float:
        """Return the time of the API server process to send one token; tokens are sent one after the other."""
        ...


@runtime_checkable
class WrapsModel(Protocol):
    """A latency model that wraps another one, and starts after an idle time as that one does."""

    def idle_start_timer(self) -> Callable[[Micros], Micros] | None: ...


def idle_start_timer(latency: LatencyModel) -> Callable[[Micros], Micros] | None:
    """Return the `idle_start_time` of a latency model, None where it has none."""
    if isinstance(latency, WrapsModel):
        return latency.idle_start_timer()
    return latency.idle_start_time if isinstance(latency, HasHostTimes) else None


def output_turn_us(latency: LatencyModel) -> float:
    """Return the `output_turn_us` of a latency model, 0 where it has none."""
    return latency.output_turn_us if isinstance(latency, HasHostTimes) else 0.0


def growth_requests(latency: LatencyModel) -> int:
    """Return the `growth_requests` of a latency model, 0 where it has none."""
    return latency.growth_requests if isinstance(latency, HasHostTimes) else 0
