"""Timing of many decode-only steps at once, for every latency model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import MAX_MICROS, LatencyModel, whole_micros
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.latency.decode_sums import DecodeSums

Floats: TypeAlias = npt.NDArray[np.float64]
"""One value per step, in float64 like Python's float, so both ways of computing agree to the last bit."""


def context_at_each_step(shape: BatchShape, steps: int) -> Floats:
    """The context sum before each of `steps` decode-only steps: it grows by one token per sequence and step."""
    grown = np.arange(steps, dtype=np.float64)
    grown *= shape.decode_requests
    grown += shape.decode_context_tokens
    return grown


def whole_micros_each(values: Floats) -> npt.NDArray[np.int64]:
    """`whole_micros` of each value."""
    if len(values) and not values.max() < MAX_MICROS:
        return np.array([whole_micros(value) for value in values.tolist()], dtype=np.int64)
    whole: npt.NDArray[np.int64] = values.astype(np.int64)
    return np.maximum(whole, 1, out=whole)


@runtime_checkable
class HasDecodeTimer(Protocol):
    """A latency model with a timer of decode-only steps that takes no shapes."""

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return a function from the number of sequences that decode, and the sum of their contexts, to `step_time` of
        a step without prompts."""
        ...


@runtime_checkable
class HasStepTimer(Protocol):
    """A latency model with a function for `step_time` that costs less to call."""

    def step_timer(self) -> Callable[[BatchShape], Micros]: ...


FewDecodesTimer: TypeAlias = Callable[[int, int, int], list[Micros]]
"""A function from the number of sequences that decode, the sum of their contexts and a number of steps, at least 1, to
`decode_times` of these steps: a list costs less than an array of few values."""


@runtime_checkable
class HasFewDecodesTimer(Protocol):
    """A latency model that may time few steps of decodes at less cost than many."""

    def few_decodes_timer(self) -> FewDecodesTimer | None: ...


@runtime_checkable
class HasDecodeSums(Protocol):
    """A latency model that keeps its sums for all instances that share it."""

    @property
    def decode_sums(self) -> "DecodeSums": ...


def step_timer(latency: LatencyModel) -> Callable[[BatchShape], Micros]:
    """Return a latency model's `step_time`, or a function in its place that costs less to call."""
    return latency.step_timer() if isinstance(latency, HasStepTimer) else latency.step_time


def decode_timer(latency: LatencyModel) -> Callable[[int, int], Micros]:
    """Return a timer of decode-only steps, as `HasDecodeTimer.decode_timer` does, for any latency model."""
    if isinstance(latency, HasDecodeTimer):
        return latency.decode_timer()
    return lambda sequences, context: latency.step_time(BatchShape(0, 0, 0, 0, 0, 0, sequences, context))


def few_decodes_timer(latency: LatencyModel) -> FewDecodesTimer | None:
    """Return the function with which a latency model times few steps, if it has one."""
    return latency.few_decodes_timer() if isinstance(latency, HasFewDecodesTimer) else None
