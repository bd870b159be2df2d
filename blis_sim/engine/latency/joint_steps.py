"""Step times of data-parallel ranks that share experts: one duration for a forward pass of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros

DUMMY_SHAPE = decodes(1, 0)
"""The shape of a rank without work: vLLM lets it compute one token that belongs to no request."""


@runtime_checkable
class RanksLatencyModel(Protocol):
    """A latency model that times ranks which share experts and have different batches."""

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        """Return the duration of a forward pass in which each rank computes the batch of its shape."""
        ...


@dataclass(slots=True)
class JointSteps(WrappedLatency):
    """`model` for one of several ranks: a step takes as long as the forward pass of all ranks under `shapes`.

    A model without that times each batch alone, and the slowest counts.
    """

    shapes: Sequence[BatchShape] = field(default_factory=list)
    """The batches of all ranks in the forward pass that begins; the caller sets them before a call."""
    _timed: Sequence[BatchShape] = field(default_factory=list, init=False)
    _time: Micros = field(default=0, init=False)

    def step_time(self, shape: BatchShape) -> Micros:
        shapes = self.shapes or [shape]
        if shapes != self._timed:
            self._timed, self._time = shapes, self._joint_time(shapes)
        return self._time

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        first, more = shape.decode_context_tokens, shape.decode_requests
        alone = (shape._replace(decode_context_tokens=first + step * more) for step in range(steps))
        return np.array([self._joint_time([each]) for each in alone], dtype=np.int64)

    def _joint_time(self, shapes: Sequence[BatchShape]) -> Micros:
        if isinstance(self.model, RanksLatencyModel):
            return self.model.ranks_time(shapes)
        return max(self.model.step_time(shape) for shape in shapes)


def joined(latency: LatencyModel, steps: JointSteps | None = None) -> tuple[LatencyModel, JointSteps]:
    """Return `latency` with the innermost model behind one `JointSteps`, and that one."""
    if isinstance(latency, WrappedLatency) and not isinstance(latency, JointSteps):
        inner, steps = joined(latency.model, steps)
        return replace(latency, model=inner), steps
    steps = steps or JointSteps(latency)
    return steps, steps
