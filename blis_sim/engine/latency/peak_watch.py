"""A watch for steps that are predicted to be faster than the GPU's peak rates allow."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.decode_steps import TimesFewDecodes, decode_timer, few_decodes_timer, step_timer
from blis_sim.engine.latency.decode_sums import DecodeSums, decode_sums
from blis_sim.engine.latency.kernels.peaks import StepPeaks
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros

TOLERANCE = 0.99
"""Steps that take so much of the least time are not reported: peak rates are rounded."""
_PROBED_CONTEXT = (1, 1_000, 8_000)


@dataclass(slots=True)
class PeakWatch(WrappedLatency):
    """`model`, called `name`, with a count of steps with prompts, and of runs of decodes, that beat `peaks`."""

    peaks: StepPeaks
    name: str
    num_too_fast: int = 0
    worst: float = 1.0
    """The least time of a step over the time predicted, where that is largest."""
    worst_tokens: int = 0
    _step_time: Callable[[BatchShape], Micros] = field(init=False, repr=False, compare=False)
    _few_decode_times: TimesFewDecodes | None = field(init=False, repr=False, compare=False)
    _rates: tuple[float, float, float, float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        peaks = self.peaks
        self._rates = peaks.token_us, peaks.head_us, peaks.pair_us, peaks.weights_us, peaks.kv_us
        self._step_time, self._few_decode_times = self.step_timer(), few_decodes_timer(self.model)

    def step_time(self, shape: BatchShape) -> Micros:
        watched_time = self._step_time
        return watched_time(shape)

    def step_timer(self) -> Callable[[BatchShape], Micros]:
        """Return the function of the model, watched."""
        model_step_time, (token_us, head_us, pair_us, weights_us, kv_us) = step_timer(self.model), self._rates

        def watched_time(shape: BatchShape) -> Micros:
            time_us = model_step_time(shape)
            prefills, prefill_tokens, squares, _, context_work, _, decoding, context, _ = shape
            least_us = token_us * (prefill_tokens + decoding) + head_us * (prefills + decoding)
            least_us += pair_us * (context_work + squares / 2)  # as `StepPeaks.step_us`
            if time_us < TOLERANCE * least_us or time_us < TOLERANCE * (weights_us + kv_us * context):
                self._note(prefill_tokens + decoding, time_us, max(least_us, weights_us + kv_us * context))
            return time_us

        return watched_time

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times = self.model.decode_times(shape, steps)
        if steps and shape.decode_requests:
            self._check(shape.decode_requests, shape.decode_context_tokens, int(times[0]))
        return times

    def few_decodes_timer(self) -> TimesFewDecodes | None:
        """Return the function of the model, watched."""
        few_decode_times = self._few_decode_times
        if few_decode_times is None:
            return None

        token_us, head_us, _, weights_us, kv_us = self._rates
        each_us = token_us + head_us

        def watched_times(sequences: int, context: int, steps: int) -> list[Micros]:
            times = few_decode_times(sequences, context, steps)
            if times[0] < each_us * sequences or times[0] < weights_us + kv_us * context:  # or nearly so
                self._check(sequences, context, times[0])
            return times

        return watched_times

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return the function of the model, which is not watched."""
        return decode_timer(self.model)

    @property
    def decode_sums(self) -> DecodeSums:
        return decode_sums(self.model)

    def _check(self, sequences: int, context: int, time_us: Micros) -> None:
        """Note a step of decodes that is too fast."""
        token_us, head_us, _, weights_us, kv_us = self._rates
        least_us = token_us * sequences + head_us * sequences
        if least_us < (memory_us := weights_us + kv_us * context):
            least_us = memory_us
        if time_us < TOLERANCE * least_us:
            self._note(sequences, time_us, least_us)

    def _note(self, num_tokens: int, time_us: Micros, least_us: float) -> None:
        self.num_too_fast += 1
        if least_us > self.worst * time_us:
            self.worst, self.worst_tokens = least_us / time_us, num_tokens

    def report(self) -> list[str]:
        """Return a line when steps were too fast."""
        if not self.num_too_fast:
            return []
        steps = "1 step was" if self.num_too_fast == 1 else f"{self.num_too_fast:,} steps were"
        return [
            f"warning: {steps} predicted to be faster than the GPU's peak rates allow, by "
            f"{self.name}: one of {self.worst_tokens:,} tokens at {self.worst:.0%} of the peak"
        ]


def watched(latency: LatencyModel, name: str, peaks: StepPeaks, max_tokens: int, max_requests: int) -> LatencyModel:
    """Return `latency` with a watch, where it can be faster than the peaks allow, or else as it is."""
    tokens = sorted({1, 64, 256, 1024, max_tokens})
    shapes = [BatchShape(1, each, each * each, 0, 0, each * each) for each in tokens if each <= max_tokens]
    requests = sorted({1, 8, 64, max_requests})
    shapes += [decodes(each, each * context) for each in requests for context in _PROBED_CONTEXT]
    probed = latency
    while isinstance(probed, WrappedLatency):  # which may keep a record of its arguments
        probed = probed.model
    too_fast = any(probed.step_time(shape) < TOLERANCE * peaks.step_us(shape) for shape in shapes)
    return PeakWatch(latency, peaks, name) if too_fast else latency
