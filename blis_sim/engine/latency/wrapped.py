"""Latency models that wrap another one: slower steps, random deviations, joint steps, and a watch for peak rates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.model import FewDecodesTimer, LatencyModel, whole_micros
from blis_sim.engine.latency.operations import Experts, HeadAttention, Matmul, SharedExpert, StepOperations, bits_of
from blis_sim.engine.specs import GpuSpec
from blis_sim.engine.units import Micros

# Latency models that wrap another one: slower steps, random deviations, a watch for unseen batches, joint steps.


@dataclass(slots=True)
class WrappedLatency(LatencyModel):
    """Passes calls on to `model`, but for functions that cost less to call; subclasses override some."""

    model: LatencyModel

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return self.model.decode_times(shape, steps)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.model.queueing_time(input_tokens)

    def queueing_timer(self) -> Callable[[int], Micros]:
        passes_on = type(self).queueing_time is WrappedLatency.queueing_time
        return self.model.queueing_timer() if passes_on else self.queueing_time

    @property
    def output_token_time(self) -> Micros:
        return self.model.output_token_time

    @property
    def output_sequence_time(self) -> Micros:
        return self.model.output_sequence_time

    @property
    def output_turn_us(self) -> float:
        return self.model.output_turn_us

    @property
    def post_decode_time(self) -> Micros:
        return self.model.post_decode_time

    def idle_start_time(self, idle_us: Micros) -> Micros:
        return self.model.idle_start_time(idle_us)

    def idle_start_timer(self) -> Callable[[Micros], Micros] | None:
        passes_on = type(self).idle_start_time is WrappedLatency.idle_start_time
        return self.model.idle_start_timer() if passes_on else self.idle_start_time

    @property
    def growth_requests(self) -> int:
        return self.model.growth_requests

    @property
    def operation_names(self) -> tuple[str, ...]:
        return self.model.operation_names

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        return self.model.operation_times_ms(shape)


class EngineAlone(WrappedLatency):
    """`model` without what the API server takes, before a request is queued and after the step of a token."""

    def queueing_time(self, input_tokens: int) -> Micros:
        return 0

    @property
    def output_token_time(self) -> Micros:
        return 0

    @property
    def output_sequence_time(self) -> Micros:
        return 0

    @property
    def output_turn_us(self) -> float:
        return 0.0

    @property
    def post_decode_time(self) -> Micros:
        return 0


@dataclass(slots=True)
class SlowedLatency(WrappedLatency):
    """`model` with steps `factor` times as long; times outside of steps are unchanged."""

    factor: float = 1.0

    def step_time(self, shape: BatchShape) -> Micros:
        time = self.model.step_time(shape)
        return time if self.factor == 1.0 else whole_micros(time * self.factor)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times = self.model.decode_times(shape, steps)
        if self.factor == 1.0:
            return times
        return np.array([whole_micros(time * self.factor) for time in times.tolist()], dtype=np.int64)

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return the function of the model, slowed by the factor at the time of the call."""
        decode_time = self.model.decode_timer()

        def slowed_time(sequences: int, context: int) -> Micros:
            time = decode_time(sequences, context)
            return time if self.factor == 1.0 else whole_micros(time * self.factor)

        return slowed_time


@dataclass(slots=True)
class ApiServers(WrappedLatency):
    """`model` with `count` API server processes, each of which sends its share of the tokens of a step."""

    count: int = 1

    @property
    def output_turn_us(self) -> float:
        return self.model.output_turn_us / self.count


@dataclass(slots=True)
class AddedTime(WrappedLatency):
    """`model` with steps that each take `added_us` longer."""

    added_us: Micros = 0

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self.added_us

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps) + self.added_us
        return times


@dataclass(slots=True)
class BalancedRanks(WrappedLatency):
    """`model`, which times the batches of all data-parallel ranks together, for one rank of `num_ranks`.

    Ranks that share experts wait for each other in every layer, and vLLM pads the batches of all to the largest. A step
    takes as long as if every rank computed the batch of this one.
    """

    num_ranks: int = 1

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(self._of_all(shape))

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return self.model.decode_times(self._of_all(shape), steps)

    def _of_all(self, shape: BatchShape) -> BatchShape:
        sums = BatchShape._make([figure * self.num_ranks for figure in shape])
        return sums._replace(recent_prefill_tokens=shape.recent_prefill_tokens)


_MASK = (1 << 64) - 1
_SPREAD_PERMILLE = 20
_STEPS_OF_SPREAD = 2 * _SPREAD_PERMILLE * 1000 + 1
_LONGEST_SHIFTED_US = 1 << 40


@dataclass(slots=True)
class PhaseShifted(WrappedLatency):
    """`model` with each step up to 2 % shorter or longer, by a number drawn from its shape and `phase`.

    The time to first token of a request that arrives during a step depends on the rest of that step. Two runs of a real
    server differ in that, as no two steps take exactly equal times; so do simulated runs of different `phase`.
    """

    phase: int

    def step_time(self, shape: BatchShape) -> Micros:
        exact_us = self.model.step_time(shape)
        if exact_us > _LONGEST_SHIFTED_US:
            return exact_us
        splitmix64 = _splitmix64_of(self._key(shape) + shape.decode_context_tokens & _MASK)
        return max(1, exact_us + exact_us * (splitmix64 % _STEPS_OF_SPREAD - _STEPS_OF_SPREAD // 2) // 1_000_000)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        exact_us = self.model.decode_times(shape, steps)
        keys = np.arange(steps, dtype=np.uint64) * np.uint64(shape.decode_requests)
        keys += np.uint64(self._key(shape) + shape.decode_context_tokens & _MASK)
        shift = (_splitmix64_of_each(keys) % np.uint64(_STEPS_OF_SPREAD)).astype(np.int64) - _STEPS_OF_SPREAD // 2
        shifted_us = np.maximum(exact_us + np.minimum(exact_us, _LONGEST_SHIFTED_US) * shift // 1_000_000, 1)
        return np.where(exact_us > _LONGEST_SHIFTED_US, exact_us, shifted_us)

    def _key(self, shape: BatchShape) -> int:
        """Return a number for all figures of a shape but decode contexts, which grow from step to step."""
        return _splitmix64_of(self.phase << 40 ^ shape.prefill_tokens << 20 ^ shape.decode_requests)


def _splitmix64_of(value: int) -> int:
    """The finalizer of the SplitMix64 generator: neighbouring numbers give unrelated ones."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _splitmix64_of_each(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_splitmix64_of` of each value; products wrap around at 64 bits."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    splitmix64: npt.NDArray[np.uint64] = values ^ values >> np.uint64(31)
    return splitmix64


WATCHED: Mapping[str, str] = {
    "num_tokens": "tokens in a step",
    "decode_requests": "decoding requests in a step",
    "decode_context_tokens": "context tokens of the decoding requests in a step",
}
"""Fields of `BatchShape` whose largest value is known from the recordings, with what they count."""
RANGE_TOLERANCE = 1.1
"""Prompts up to this factor longer or shorter than all recorded prompts are not reported."""


@dataclass(slots=True)
class RangeWatch(WrappedLatency):
    """`model` with a record of its largest batches and its shortest and longest prompts.

    `seen` has the largest batches of the recordings, `seen_prompts` the tokens of their shortest and longest prompts.
    `origin` names the coefficients in messages, `learned_for` the deployment that was recorded.

    Contexts that grow while many steps are taken at once are noticed at the next call.
    """

    seen: Mapping[str, int]
    seen_prompts: tuple[int, int] | None = None
    origin: str = "--coefficients"
    learned_for: str = ""
    _maxima: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHED, 0))
    _prompt_range: tuple[int, int] | None = None

    def exceeded(self) -> list[str]:
        """Return a line for each figure that exceeded the recordings."""
        batches = [
            f"up to {self._maxima[name]:,} {what}, the coefficients have seen up to {self.seen[name]:,}"
            for name, what in WATCHED.items()
            if name in self.seen and self._maxima[name] > self.seen[name]
        ]
        return batches + self._exceeded_by_prompts()

    def _exceeded_by_prompts(self) -> list[str]:
        if self.seen_prompts is None or self._prompt_range is None:
            return []
        (least, most), (shortest, longest) = self.seen_prompts, self._prompt_range
        if shortest * RANGE_TOLERANCE >= least and longest <= most * RANGE_TOLERANCE:
            return []
        return [f"prompts of {shortest:,} to {longest:,} tokens, the coefficients have seen {least:,} to {most:,}"]

    def step_time(self, shape: BatchShape) -> Micros:
        asked = self._maxima
        num_tokens = shape.prefill_tokens + shape.decode_requests
        if num_tokens > asked["num_tokens"]:
            asked["num_tokens"] = num_tokens
        if shape.decode_requests > asked["decode_requests"]:
            asked["decode_requests"] = shape.decode_requests
        if shape.decode_context_tokens > asked["decode_context_tokens"]:
            asked["decode_context_tokens"] = shape.decode_context_tokens
        return self.model.step_time(shape)

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return the function of the model, with the same record."""
        decode_time, asked = self.model.decode_timer(), self._maxima

        def noted_time(sequences: int, context: int) -> Micros:
            if sequences > asked["decode_requests"]:
                asked["decode_requests"] = sequences
                asked["num_tokens"] = max(sequences, asked["num_tokens"])
            if context > asked["decode_context_tokens"]:
                asked["decode_context_tokens"] = context
            return decode_time(sequences, context)

        return noted_time

    def few_decodes_timer(self) -> FewDecodesTimer | None:
        return self.model.few_decodes_timer()

    def queueing_time(self, input_tokens: int) -> Micros:
        shortest, longest = self._prompt_range or (input_tokens, input_tokens)
        if not shortest <= input_tokens <= longest or self._prompt_range is None:
            self._prompt_range = min(shortest, input_tokens), max(longest, input_tokens)
        return self.model.queueing_time(input_tokens)


def dummy_shape(num_drafts: int) -> BatchShape:
    """Return the shape of a rank without work, which decodes for no request, with as many drafts as any other.

    Source: vllm/v1/worker/gpu_worker.py, `execute_dummy_batch`.
    """
    return BatchShape(0, num_drafts, num_drafts**2, 0, num_drafts, num_drafts, 1, 0, 0, num_drafts)


@dataclass(slots=True)
class JointSteps(WrappedLatency):
    """`model` for one of several ranks: a step takes as long as the forward pass of all ranks under `shapes`."""

    shapes: Sequence[BatchShape] = field(default_factory=list)
    """The batches of all ranks in the forward pass that begins; the caller sets them before a call."""
    _timed: Sequence[BatchShape] = field(default_factory=list, init=False)
    _time: Micros = field(default=0, init=False)

    def step_time(self, shape: BatchShape) -> Micros:
        shapes = self.shapes or [shape]
        if shapes != self._timed:
            self._timed, self._time = shapes, self.model.ranks_time(shapes)
        return self._time

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        first, more = shape.decode_context_tokens, shape.decode_requests
        alone = (shape._replace(decode_context_tokens=first + step * more) for step in range(steps))
        return np.array([self.model.ranks_time([each]) for each in alone], dtype=np.int64)


def with_joint_steps(latency: LatencyModel, steps: JointSteps | None = None) -> tuple[LatencyModel, JointSteps]:
    """Return `latency` with the innermost model that times ranks together behind one `JointSteps`, and that one."""
    if isinstance(latency, WrappedLatency) and not isinstance(latency, JointSteps) and not _times_ranks(latency):
        inner, steps = with_joint_steps(latency.model, steps)
        return replace(latency, model=inner), steps
    steps = steps or JointSteps(latency)
    return steps, steps


def _times_ranks(latency: LatencyModel) -> bool:
    return type(latency).ranks_time is not LatencyModel.ranks_time


# A watch for steps that are predicted to be faster than the GPU's peak rates allow.

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
        prefills, prefill_tokens, squares, _, context_work, _, decodes, context, *_ = shape
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
        self._step_time, self._few_decode_times = self.step_timer(), self.model.few_decodes_timer()

    def step_time(self, shape: BatchShape) -> Micros:
        watched_time = self._step_time
        return watched_time(shape)

    def step_timer(self) -> Callable[[BatchShape], Micros]:
        """Return the function of the model, watched."""
        model_step_time, (token_us, head_us, pair_us, weights_us, kv_us) = self.model.step_timer(), self._rates

        def watched_time(shape: BatchShape) -> Micros:
            time_us = model_step_time(shape)
            prefills, prefill_tokens, squares, _, context_work, _, decoding, context, _, _ = shape
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
        return self.model.decode_timer()

    @property
    def decode_sums(self) -> DecodeSums:
        return self.model.decode_sums

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
