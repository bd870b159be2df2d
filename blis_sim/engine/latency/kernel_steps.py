"""A latency model from measured kernels: the sum of what a step's operations take, and of what the host adds."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.decode_steps import context_at_each_step, whole_micros_each
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.kernels.grids import (
    CLASSES,
    TOKEN_CLASSES,
    DecodeLine,
    KernelGrids,
    PromptGrid,
    at_each,
    chunk_line,
    decode_line,
    prompt_grid,
)
from blis_sim.engine.latency.model import checked_coefficients, whole_micros
from blis_sim.engine.units import Micros

LARGEST_STEP_TOKENS = 32_768
"""Steps with more tokens are extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScales:
    """Factors from the measured to the actual time of the kernels of each class."""

    matmul: float = 1.0
    experts: float = 1.0
    all_reduce: float = 1.0
    elementwise: float = 1.0
    head: float = 1.0
    prompt_attention: float = 1.0
    decode_attention: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverheads:
    """Overheads of a step beside its kernels, and those outside of steps, in microseconds."""

    step_us: float
    prompt_us: float
    """Per request that computes prompt tokens."""
    request_us: float
    """Per request that decodes."""
    arrival_us: float
    arrival_token_us: float
    output_us: float
    output_request_us: float
    burst: float = 0.0
    """Share of the time of a burst of arithmetic, of `LONGEST_BURST_US` at most, by which the steps after it last
    longer."""
    burst_again: float = 0.0
    """Share of the time of the prompts' arithmetic, of `FULLY_HOT_US` at most, that is added right after such a
    burst, and of all arithmetic of a step beyond that: a GPU that is hot runs at a lower clock."""


EAGER_LAUNCH_US = 21.0
"""Time of the host to start a kernel from Python: an all-reduce of a few values without CUDA graphs takes so long in
the tables of an RTX PRO 6000, and 4 us with them."""
LONGEST_BURST_US, FULLY_HOT_US = 36_000.0, 73_000.0
"""The limits of `fitted`, of times at peak rate, in times as measured. Tables were measured kernel by kernel, on a GPU
that had not computed for so long."""
_TOKENS_OF_RATE = 4096
"""Tokens of the step from which the time of the arithmetic of a token is taken."""


@dataclass(frozen=True, slots=True)
class KernelSteps:
    """Steps of one deployment. `graph_sizes` are the numbers of tokens that CUDA graphs were captured for: a smaller
    batch is padded to the next of them."""

    grids: KernelGrids
    host: HostOverheads
    scales: KernelScales = field(default_factory=KernelScales)
    graph_sizes: tuple[int, ...] = ()
    launch_us: float = 0.0
    """Time of the host to start a kernel where it starts them one by one; 0 with CUDA graphs."""
    decode_rows: int = 0
    """Prompt tokens that a request which decodes counts as in the attention of a step with prompts; 0 for no change."""
    has_one_attention_call: bool = False
    """Whether one kernel per layer computes the attention of prompts and decodes, which starts once."""
    decode_sums: DecodeSums = field(default_factory=DecodeSums, init=False, repr=False, compare=False)
    _least_us: float = field(init=False, repr=False, compare=False)
    """Until the host has started all kernels of a step."""
    _tokens_us: list[float] = field(init=False, repr=False, compare=False)
    """Everything that depends on the number of tokens alone, by that number."""
    _beyond_us: float = field(init=False, repr=False, compare=False)
    """Time per token beyond the end of `_tokens_us`."""
    _head_us: list[float] = field(init=False, repr=False, compare=False)
    _arithmetic_us: float = field(init=False, repr=False, compare=False)
    """Per token, in large batches."""
    _prompts: PromptGrid = field(init=False, repr=False, compare=False)
    _start_us: float = field(init=False, repr=False, compare=False)
    """Starts of the kernels of attention, which prompts beside decodes do without."""
    _lines: dict[int, DecodeLine] = field(init=False, repr=False, compare=False)
    _chunk_lines: dict[int, DecodeLine] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for numbers in (self.host, self.scales):
            for each in fields(numbers):
                checked_coefficients(each.name, (getattr(numbers, each.name),), 1, 1)
        grids, scales = self.grids, self.scales
        weights = np.array([getattr(scales, name) for name in TOKEN_CLASSES])
        tokens_us = at_each(grids.tokens, weights @ grids.token_us, LARGEST_STEP_TOKENS)
        head_us = at_each(grids.tokens, scales.head * grids.head_us, LARGEST_STEP_TOKENS)
        for low, high in zip((0, *self.graph_sizes), self.graph_sizes, strict=False):
            tokens_us[low + 1 : high + 1] = [tokens_us[high]] * (high - low)
        values = {
            "_tokens_us": tokens_us,
            "_beyond_us": tokens_us[-1] - tokens_us[-2],
            "_head_us": head_us,
            "_least_us": self.launch_us * grids.num_kernels,
            "_arithmetic_us": _arithmetic_us(grids),
            "_prompts": prompt_grid(grids),
            "_start_us": float(grids.prompt_us.min()) if self.has_one_attention_call else 0.0,
            "_lines": {},
            "_chunk_lines": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def step_time(self, shape: BatchShape) -> Micros:
        decodes, prompts = shape.decode_requests, shape.prefill_requests
        if not prompts:
            return self.decode_time(decodes, shape.decode_context_tokens)
        fixed_us = self._fixed_us(shape.prefill_tokens + decodes, prompts, decodes) + self._prompt_us(shape)
        if not decodes:
            return whole_micros(max(fixed_us, self._least_us))
        decode_us = self._beside_prompts_us(decodes, shape.decode_context_tokens) * self.scales.decode_attention
        return whole_micros(max(decode_us + fixed_us, self._least_us))

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return `decode_time`."""
        return self.decode_time

    def decode_time(self, sequences: int, context: int) -> Micros:
        """Return `step_time` of a step in which `sequences` with `context` tokens together decode, without prompts."""
        if not sequences:
            return 1
        time_us = self._decode_us(sequences, context) + self._fixed_us(sequences, 0, sequences)
        return whole_micros(max(time_us, self._least_us))

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        requests = shape.decode_requests
        if not requests:
            return np.ones(steps, dtype=np.int64)
        line = self._line(requests)
        sums = context_at_each_step(shape, steps)
        sums += requests
        first = bisect_right(line.bounds, sums[0]) if steps else 0
        if steps and first < len(line.bounds) and sums[-1] >= line.bounds[first]:
            segments = line.bound_array.searchsorted(sums, side="right")
            sums *= line.slope_array[segments]
            sums += line.start_array[segments]
        else:
            sums *= line.slopes[first]
            sums += line.starts[first]
        sums *= self.scales.decode_attention
        sums += self._fixed_us(requests, 0, requests)
        if self._least_us:
            np.maximum(sums, self._least_us, out=sums)
        return whole_micros_each(sums)

    def _decode_us(self, requests: int, context: int) -> float:
        return self._measured_decode_us(requests, context) * self.scales.decode_attention

    def _measured_decode_us(self, requests: int, context: int) -> float:
        return _at(self._lines.get(requests) or self._line(requests), float(context + requests))

    def _beside_prompts_us(self, requests: int, context: int) -> float:
        """Return the attention of decodes in a step that has prompts, as measured."""
        time_us = self._measured_decode_us(requests, context)
        if not self.decode_rows:
            return time_us
        line = self._chunk_lines.get(requests)
        if line is None:
            line = self._chunk_lines[requests] = chunk_line(self._prompts, requests, self.decode_rows)
        return max(time_us, _at(line, float(context + requests)))

    def _line(self, requests: int) -> DecodeLine:
        found = self._lines.get(requests)
        if found is None:
            found = self._lines[requests] = decode_line(self.grids, requests)
        return found

    def _fixed_us(self, num_tokens: int, prompts: int, decodes: int) -> float:
        """Return the time of a step without attention."""
        host = self.host
        sampling = min(prompts + decodes, LARGEST_STEP_TOKENS)
        if num_tokens > LARGEST_STEP_TOKENS:
            tokens_us = self._tokens_us[-1] + self._beyond_us * (num_tokens - LARGEST_STEP_TOKENS)
        else:
            tokens_us = self._tokens_us[num_tokens]
        return tokens_us + self._head_us[sampling] + host.step_us + host.prompt_us * prompts + host.request_us * decodes

    def _prompt_us(self, shape: BatchShape) -> float:
        """Return the time that prompts add to a step beside the time of their tokens."""
        heat_us = self._heat_us(shape.prefill_tokens, shape.recent_prefill_tokens)
        return self._attention_us(shape) * self.scales.prompt_attention + heat_us

    def _attention_us(self, shape: BatchShape) -> float:
        """Attention of the prompts, as measured: that of as many equal ones as have the same sums."""
        tokens = shape.prefill_tokens
        each = shape.prefill_tokens_squared / tokens
        time_us = self._prompts.time_us(tokens / each, each, shape.prefill_context_work / tokens)
        return max(0.0, time_us - self._start_us) if shape.decode_requests else time_us

    def _heat_us(self, tokens: int, recent: int) -> float:
        """Return the time that bursts of arithmetic, this one and those before it, add to a step."""
        burst_us, again_us = self._bursts_us(tokens, recent)
        return self.host.burst * burst_us + self.host.burst_again * again_us

    def _bursts_us(self, tokens: int, recent: int) -> tuple[float, float]:
        """Return the time of a burst of arithmetic, and the time of arithmetic on a hot GPU, each up to its limit."""
        arithmetic_us = self._arithmetic_us * tokens
        again_us = max(0.0, arithmetic_us - FULLY_HOT_US)
        if recent:
            hot = min(self._arithmetic_us * recent, LONGEST_BURST_US) / LONGEST_BURST_US
            again_us += min(arithmetic_us, FULLY_HOT_US) * hot
        return min(arithmetic_us, LONGEST_BURST_US), again_us

    def parts_us(self, shape: BatchShape) -> tuple[float, float, float, float]:
        """Return attention of prompts and of decodes as measured, the burst of arithmetic, and what of it is hot."""
        decode_us = prompt_us = burst_us = again_us = 0.0
        if shape.decode_requests:
            timed = self._beside_prompts_us if shape.prefill_tokens else self._measured_decode_us
            decode_us = timed(shape.decode_requests, shape.decode_context_tokens)
        if shape.prefill_tokens:
            prompt_us = self._attention_us(shape)
            burst_us, again_us = self._bursts_us(shape.prefill_tokens, shape.recent_prefill_tokens)
        return prompt_us, decode_us, burst_us, again_us

    @property
    def operation_names(self) -> tuple[str, ...]:
        return (*CLASSES, "host")

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each class of kernels in one step, and what the host adds to them."""
        num_tokens, scales, grids = shape.num_tokens, self.scales, self.grids
        padded = next((size for size in self.graph_sizes if size >= num_tokens), num_tokens)
        times = [
            getattr(scales, name) * float(np.interp(padded, grids.tokens, times_us))
            for name, times_us in zip(TOKEN_CLASSES, grids.token_us, strict=True)
        ]
        prompt_us, decode_us, burst_us, again_us = self.parts_us(shape)
        times.append(self._head_us[min(shape.num_requests, LARGEST_STEP_TOKENS)])
        times += [prompt_us * scales.prompt_attention, decode_us * scales.decode_attention]
        host = self.host
        times.append(
            host.step_us
            + host.prompt_us * shape.prefill_requests
            + host.request_us * shape.decode_requests
            + host.burst * burst_us
            + host.burst_again * again_us
        )
        return tuple(time / 1e3 for time in times)

    def queueing_time(self, input_tokens: int) -> Micros:
        return int(self.host.arrival_us + self.host.arrival_token_us * input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return int(self.host.output_us)

    @property
    def output_sequence_time(self) -> Micros:
        return int(self.host.output_request_us)

    @property
    def post_decode_time(self) -> Micros:
        return 0


def _at(line: DecodeLine, tokens: float) -> float:
    segment = bisect_right(line.bounds, tokens)
    return tokens * line.slopes[segment] + line.starts[segment]


def _arithmetic_us(grids: KernelGrids) -> float:
    matmul_us, experts_us = grids.token_us[0], grids.token_us[1]
    return float(np.interp(_TOKENS_OF_RATE, grids.tokens, matmul_us + experts_us)) / _TOKENS_OF_RATE
