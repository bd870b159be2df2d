"""Latency models that wrap another one: slower steps, random deviations, a watch for unseen batches, joint steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.engine.latency.model import (
    HasHostTimes,
    LatencyModel,
    growth_requests,
    idle_start_timer,
    output_turn_us,
    whole_micros,
)
from blis_sim.engine.units import Micros


@dataclass(slots=True)
class WrappedLatency:
    """Passes every call on to `model`; subclasses override some."""

    model: LatencyModel

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return self.model.decode_times(shape, steps)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.model.queueing_time(input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return self.model.output_token_time

    @property
    def output_sequence_time(self) -> Micros:
        return self.model.output_sequence_time

    @property
    def post_decode_time(self) -> Micros:
        return self.model.post_decode_time

    def idle_start_timer(self) -> Callable[[Micros], Micros] | None:
        """Return `idle_start_time`: where it only passes the call on, that of the model, None where that has none."""
        passes_on = type(self).idle_start_time is WrappedLatency.idle_start_time
        return idle_start_timer(self.model) if passes_on else self.idle_start_time

    def idle_start_time(self, idle_us: Micros) -> Micros:
        return self.model.idle_start_time(idle_us) if isinstance(self.model, HasHostTimes) else 0

    @property
    def growth_requests(self) -> int:
        return growth_requests(self.model)

    @property
    def output_turn_us(self) -> float:
        return output_turn_us(self.model)


def queueing_timer(latency: LatencyModel) -> Callable[[int], Micros]:
    """Return `queueing_time` of the innermost model that those around it pass the call on to."""
    while isinstance(latency, WrappedLatency) and type(latency).queueing_time is WrappedLatency.queueing_time:
        latency = latency.model
    return latency.queueing_time


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


@dataclass(slots=True)
class ApiServers(WrappedLatency):
    """`model` with `count` API server processes, each of which sends its share of the tokens of a step."""

    count: int = 1

    @property
    def output_turn_us(self) -> float:
        return output_turn_us(self.model) / self.count


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
class EvenRanks(WrappedLatency):
    """`model`, which times the batches of all data-parallel ranks together, for one rank of `num_ranks`.

    Ranks that share experts wait for each other in every layer, and vLLM pads the batches of all to the largest: a step
    takes as long as if every rank computed the batch of this one.
    """

    num_ranks: int = 1

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(self._of_all(shape))

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return self.model.decode_times(self._of_all(shape), steps)

    def _of_all(self, shape: BatchShape) -> BatchShape:
        *sums, recent_prefill_tokens = shape
        return BatchShape._make([*(figure * self.num_ranks for figure in sums), recent_prefill_tokens])


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
        decode_time, asked = decode_timer(self.model), self._maxima

        def noted_time(sequences: int, context: int) -> Micros:
            if sequences > asked["decode_requests"]:
                asked["decode_requests"] = sequences
                asked["num_tokens"] = max(sequences, asked["num_tokens"])
            if context > asked["decode_context_tokens"]:
                asked["decode_context_tokens"] = context
            return decode_time(sequences, context)

        return noted_time

    def queueing_time(self, input_tokens: int) -> Micros:
        shortest, longest = self._prompt_range or (input_tokens, input_tokens)
        if not shortest <= input_tokens <= longest or self._prompt_range is None:
            self._prompt_range = min(shortest, input_tokens), max(longest, input_tokens)
        return self.model.queueing_time(input_tokens)


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


def with_joint_steps(latency: LatencyModel, steps: JointSteps | None = None) -> tuple[LatencyModel, JointSteps]:
    """Return `latency` with the innermost model behind one `JointSteps`, and that one."""
    if isinstance(latency, WrappedLatency) and not isinstance(latency, JointSteps):
        inner, steps = with_joint_steps(latency.model, steps)
        return replace(latency, model=inner), steps
    steps = steps or JointSteps(latency)
    return steps, steps


@runtime_checkable
class HasOperations(Protocol):
    """A latency model made of operations: what `operation_metrics.csv` has a column for."""

    @property
    def operation_names(self) -> tuple[str, ...]:
        """The operations, in the order of their columns."""
        ...

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each operation in one step."""
        ...


def operations_of(latency: LatencyModel) -> HasOperations | None:
    """Return the model with times of operations, itself or below its wrappers; None if there is none."""

    while not isinstance(latency, HasOperations):
        if not isinstance(latency, WrappedLatency):
            return None
        latency = latency.model
    return latency
