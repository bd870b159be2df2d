"""A watch for steps that are predicted to be faster than the GPU's peak rates allow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.decode_steps import FewDecodesTimer, decode_timer, few_decodes_timer, step_timer
from blis_sim.engine.latency.decode_sums import DecodeSums, decode_sums
from blis_sim.engine.latency.kernels.operations import (
    Experts,
    HeadAttention,
    Matmul,
    SharedExpert,
    StepOperations,
    bits_of,
)
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.specs import GpuSpec
from blis_sim.engine.units import Micros

_BLACKWELL = 10
_BYTES_OF_FP8, _BYTES_OF_HALF = 1, 2


class StepPeaks(NamedTuple):
    """Microseconds at peak rates, per unit of what a step holds."""

    token_us: float
    """Arithmetic of a token in matrix multiplications."""
    head_us: float
    """Arithmetic of the logits of a request."""
    pair_us: float
    """Arithmetic of a new prompt token with a token that it attends to."""
    weights_us: float
    """Reading the weights that any step reads: of experts, those of a single token."""
    kv_us: float
    """Reading the KV cache of a token."""

    def step_us(self, shape: BatchShape) -> float:
        """Return the least time of a step."""
        prefills, prefill_tokens, squares, _, context_work, _, decodes, context, _ = shape
        arithmetic_us = self.token_us * (prefill_tokens + decodes) + self.head_us * (prefills + decodes)
        arithmetic_us += self.pair_us * (context_work + squares / 2)
        memory_us = self.weights_us + self.kv_us * context
        return arithmetic_us if arithmetic_us > memory_us else memory_us


def step_peaks(operations: StepOperations, gpu: GpuSpec) -> StepPeaks:
    """Return the peaks of a deployment on one of its GPUs."""
    token_us = weights_us = pair_us = kv_us = 0.0
    bytes_per_us = gpu.bandwidth_tb_s * 1e6
    for operation, count in operations.per_token:
        matmul = operation.matmul if isinstance(operation, SharedExpert) else operation
        if isinstance(matmul, Matmul):
            weights = matmul.rows * matmul.columns * count
            token_us += 2 * weights / _flops_per_us(gpu, matmul.weights)
        elif isinstance(matmul, Experts):
            shared = matmul.tp * matmul.ep
            weights = (3 if matmul.has_gate else 2) * matmul.hidden_size * matmul.inner_size * count * matmul.chosen
            weights //= shared
            token_us += 2 * weights / _flops_per_us(gpu, matmul.weights)
        else:
            continue
        weights_us += weights * bits_of(matmul.weights) / 8 / bytes_per_us
    for attention, count in operations.attention:
        if isinstance(attention, HeadAttention) and not attention.window_tokens:
            pair_us += 4 * attention.heads * attention.head_size * count / _flops_per_us(gpu, "")
            width = _BYTES_OF_FP8 if attention.kv_dtype == "fp8" else _BYTES_OF_HALF
            kv_us += 2 * attention.kv_heads * attention.head_size * width * count / bytes_per_us
    head = operations.head.rows * operations.head.columns
    return StepPeaks(
        token_us=token_us,
        head_us=2 * head / _flops_per_us(gpu, ""),
        pair_us=pair_us,
        weights_us=weights_us + head * _BYTES_OF_HALF / bytes_per_us,
        kv_us=kv_us,
    )


def _flops_per_us(gpu: GpuSpec, weights: str) -> float:
    """Return the peak of the widest type that the operands of such weights are multiplied in."""
    if weights == "nvfp4" and gpu.tflops_fp4:
        return gpu.tflops_fp4 * 1e6
    is_mxfp8 = weights == "mxfp4" and gpu.compute_capability // 1 >= _BLACKWELL
    if (is_mxfp8 or weights in ("fp8", "block fp8", "mxfp8", "int8")) and gpu.tflops_fp8:
        return gpu.tflops_fp8 * 1e6
    return gpu.tflops * 1e6


TOLERANCE = 0.99
"""Steps that take so much of the least time are not reported: peak rates are rounded."""
_PROBED_CONTEXT = (1, 1_000, 8_000)


@dataclass(slots=True)
class PeakWatch(WrappedLatency):
    """`model`, called `name`, with a count of steps with prompts, and of runs of decodes, that beat `peaks`."""

    peaks: StepPeaks
    name: str
    num_too_fast: int = 0
    worst_ratio: float = 1.0
    """The least time of a step over the time predicted, where that is largest."""
    worst_tokens: int = 0
    _step_time: Callable[[BatchShape], Micros] = field(init=False, repr=False, compare=False)
    _few_decode_times: FewDecodesTimer | None = field(init=False, repr=False, compare=False)
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

    def few_decodes_timer(self) -> FewDecodesTimer | None:
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
        if least_us > self.worst_ratio * time_us:
            self.worst_ratio, self.worst_tokens = least_us / time_us, num_tokens

    def report(self) -> list[str]:
        """Return a line when steps were too fast."""
        if not self.num_too_fast:
            return []
        steps = "1 step was" if self.num_too_fast == 1 else f"{self.num_too_fast:,} steps were"
        return [
            f"warning: {steps} predicted to be faster than the GPU's peak rates allow, by "
            f"{self.name}: one of {self.worst_tokens:,} tokens at {self.worst_ratio:.0%} of the peak"
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
