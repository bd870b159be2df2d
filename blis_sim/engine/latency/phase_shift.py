"""Any latency model with steps that are now a little shorter, now a little longer: a run of it drifts out of phase.

When a request meets the engine in the middle of a step, its time to the first token depends on how far that step has
got. Two runs of a real server differ in that, for no two steps take exactly the same time. Several runs here, each with
a number of its own, differ likewise.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros

_MASK = (1 << 64) - 1
_SPREAD_PERMILLE = 20
_STEPS_OF_SPREAD = 2 * _SPREAD_PERMILLE * 1000 + 1
_LONGEST_SHIFTED_US = 1 << 40


@dataclass(slots=True)
class PhaseShifted(WrappedLatency):
    """`model` with each step up to 2 % shorter or longer, by a number drawn from its shape and `phase`."""

    phase: int

    def step_time(self, shape: BatchShape) -> Micros:
        exact_us = self.model.step_time(shape)
        if exact_us > _LONGEST_SHIFTED_US:
            return exact_us
        mixed = _mixed(self._key(shape) + shape.decode_context_tokens & _MASK)
        return max(1, exact_us + exact_us * (mixed % _STEPS_OF_SPREAD - _STEPS_OF_SPREAD // 2) // 1_000_000)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        exact_us = self.model.decode_times(shape, steps)
        keys = np.arange(steps, dtype=np.uint64) * np.uint64(shape.decode_requests)
        keys += np.uint64(self._key(shape) + shape.decode_context_tokens & _MASK)
        shift = (_mixed_each(keys) % np.uint64(_STEPS_OF_SPREAD)).astype(np.int64) - _STEPS_OF_SPREAD // 2
        shifted_us = np.maximum(exact_us + np.minimum(exact_us, _LONGEST_SHIFTED_US) * shift // 1_000_000, 1)
        return np.where(exact_us > _LONGEST_SHIFTED_US, exact_us, shifted_us)

    def _key(self, shape: BatchShape) -> int:
        """A number for all of a shape but its decode contexts, which grow from step to step."""
        return _mixed(self.phase << 40 ^ shape.prefill_tokens << 20 ^ shape.decode_requests)


def _mixed(value: int) -> int:
    """The finalizer of the SplitMix64 generator: neighbouring numbers give unrelated ones."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _mixed_each(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_mixed` of each value; products wrap around at 64 bits."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ values >> np.uint64(31)
    return mixed
