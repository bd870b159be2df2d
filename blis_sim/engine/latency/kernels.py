"""A latency model from measured kernels: their times on grids, in microseconds, and what the host adds to a step."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from math import exp, log
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.decode_steps import context_at_each_step, whole_micros_each
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.model import LatencyModel, checked_coefficients, whole_micros
from blis_sim.engine.units import Micros

# Kernel times of one deployment on grids, in microseconds, and interpolation between their points.

Times: TypeAlias = npt.NDArray[np.float64]  # mypyc takes it for a variable unless it says what it is

GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
"""The batches that vLLM captures CUDA graphs of, up to its largest default."""
CLASSES = ("matmul", "experts", "all_reduce", "elementwise", "head", "prompt_attention", "decode_attention")
"""Kinds of operations, as files and `blis fit` name them."""
TOKEN_CLASSES = CLASSES[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGrids:
    """Times of all layers together.

    `token_us` has the times of a step of this number of `tokens` for each of `TOKEN_CLASSES`. `head_us` has those of
    the output head for as many requests that sample. `decode_us[i, j]` is the attention of `decode_requests[i]`
    requests with `decode_context[j]` tokens each, `prompt_us[i, j, k]` that of `prompt_requests[i]` prompts of
    `prompt_tokens[j]` new tokens each after `prompt_context[k]` tokens.
    """

    tokens: tuple[int, ...]
    token_us: Times
    head_us: Times
    decode_requests: tuple[int, ...]
    decode_context: tuple[int, ...]
    decode_us: Times
    prompt_requests: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    prompt_context: tuple[int, ...]
    prompt_us: Times
    num_layers: int
    num_kernels: int
    """Kernels of a step, which the host starts one by one in eager mode."""
    notes: tuple[str, ...] = field(default=())
    """Notes on measurements that were replaced or completed."""
    scaling: str = ""
    """A line on kernels that were scaled from those of another GPU."""


_BLACKWELL = 10
_LARGEST_GRAPH, _LARGEST_GRAPH_OF_BLACKWELL = 512, 1024


def graph_sizes(compute_capability: float, max_num_seqs: int) -> tuple[int, ...]:
    """Return the batches, in tokens, that vLLM captures CUDA graphs of by default."""
    most = _LARGEST_GRAPH_OF_BLACKWELL if compute_capability // 1 == _BLACKWELL else _LARGEST_GRAPH
    most = min(2 * max_num_seqs, most)
    return tuple(size for size in GRAPH_SIZES if size <= most)


def at_each(points: Sequence[int], times: Times, largest: int) -> list[float]:
    """Return the time at 0, 1, ... `largest`, linear between points, and in line with the last two beyond them."""
    at = np.arange(largest + 1, dtype=np.float64)
    found = np.interp(at, points, times)
    beyond = at > points[-1]
    if beyond.any():
        found[beyond] = times[-1] + (at[beyond] - points[-1]) * slope_at_end(points, times)
    values: list[float] = found.tolist()
    return values


def slope_at_end(points: Sequence[int], times: Times) -> float:
    """Return the time per unit between the last two points, not below 0."""
    return max(0.0, float(times[-1] - times[-2]) / (points[-1] - points[-2]))


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Attention of a fixed number of requests by the sum of their tokens: in each segment `starts + slopes * sum`."""

    bounds: list[float]
    """Where the segments but the first begin."""
    starts: list[float]
    slopes: list[float]
    bound_array: npt.NDArray[np.float64] = field(repr=False)
    start_array: npt.NDArray[np.float64] = field(repr=False)
    slope_array: npt.NDArray[np.float64] = field(repr=False)


def decode_line(grids: KernelGrids, requests: int) -> DecodeLine:
    """Return the attention of `requests` that decode, between those of the neighbouring numbers of requests."""
    row = _row(grids.decode_requests, grids.decode_us, requests)
    return _line(np.array(grids.decode_context, dtype=np.float64) * requests, row)


def _line(sums: Times, row: Times) -> DecodeLine:
    slopes = np.maximum(np.diff(row) / np.diff(sums), 0.0)
    starts = row[:-1] - slopes * sums[:-1]
    bounds = sums[1:-1]
    return DecodeLine(bounds.tolist(), starts.tolist(), slopes.tolist(), bounds, starts, slopes)


def _row(points: Sequence[int], rows: Times, at: int) -> Times:
    upper = min(max(bisect_right(points, at), 1), len(points) - 1)
    low, high = points[upper - 1], points[upper]
    share = (at - low) / (high - low)
    row: Times = rows[upper - 1] + share * (rows[upper] - rows[upper - 1])
    return row


@dataclass(frozen=True, slots=True)
class PromptGrid:
    """Attention of prompts: between points a power of requests and new tokens, and linear in the tokens before."""

    requests: list[float]
    tokens: list[float]
    context: list[float]
    times: list[list[list[float]]]

    def time_us(self, requests: float, tokens: float, context: float) -> float:
        """Return the time of `requests` prompts with `tokens` new tokens each after `context` tokens each."""
        i = _segment(self.requests, requests)
        j = _segment(self.tokens, tokens)
        k = _segment(self.context, context)
        in_context = (context - self.context[k]) / (self.context[k + 1] - self.context[k])
        in_tokens = log(tokens / self.tokens[j]) / log(self.tokens[j + 1] / self.tokens[j])
        fewer = _power(self.times[i], j, k, in_context, in_tokens)
        if requests == self.requests[i]:
            return exp(fewer)
        more = _power(self.times[i + 1], j, k, in_context, in_tokens)
        in_requests = log(requests / self.requests[i]) / log(self.requests[i + 1] / self.requests[i])
        return exp(fewer + in_requests * (more - fewer))


def prompt_grid(grids: KernelGrids) -> PromptGrid:
    """Return the attention of prompts as plain lists, which are faster to read one by one."""
    return PromptGrid(
        [float(each) for each in grids.prompt_requests],
        [float(each) for each in grids.prompt_tokens],
        [float(each) for each in grids.prompt_context],
        np.maximum(grids.prompt_us, 1e-9).tolist(),
    )


def chunk_line(prompts: PromptGrid, requests: int, rows: int) -> DecodeLine:
    """Return the attention of `requests` that decode. Each takes as long as a chunk of `rows` prompt tokens, the last
    ones of its context."""
    row = np.array([prompts.time_us(requests, rows, before) for before in prompts.context])
    return _line(requests * (np.array(prompts.context) + rows), row)


def _segment(points: list[float], at: float) -> int:
    return min(max(bisect_right(points, at) - 1, 0), len(points) - 2)


def _power(times: list[list[float]], j: int, k: int, in_context: float, in_tokens: float) -> float:
    """Return the logarithm of the time at a place between two numbers of tokens and two contexts."""
    low, high = times[j], times[j + 1]
    shorter = log(low[k] + in_context * (low[k + 1] - low[k]))
    longer = log(high[k] + in_context * (high[k + 1] - high[k]))
    return shorter + in_tokens * (longer - shorter)


# A latency model from measured kernels: the sum of what a step's operations take, and of what the host adds.

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
    """Per token that is sampled for a request that decodes, drafts included."""
    arrival_us: float
    arrival_token_us: float
    output_us: float
    output_request_us: float
    burst: float = 0.0
    """Share of the time of a burst of arithmetic, of `LONGEST_BURST_US` at most, by which the steps after it last
    longer."""
    burst_again: float = 0.0
    """Share of the time of the prompts' arithmetic, of `FULLY_HOT_US` at most, that is added right after such a burst.
    All arithmetic of a step beyond that gets it, too, for a GPU that is hot runs at a lower clock."""


EAGER_LAUNCH_US = 21.0
"""Time of the host to start a kernel from Python. An all-reduce of a few values without CUDA graphs takes as long in
the tables of an RTX PRO 6000, and 4 us with graphs."""
LONGEST_BURST_US, FULLY_HOT_US = 36_000.0, 73_000.0
"""The limits of `fitted`, of times at peak rate, in times as measured. Tables were measured kernel by kernel, on a GPU
that had not computed for so long."""
_EXPERTS = TOKEN_CLASSES.index("experts")
_TOKENS_OF_RATE = 4096
"""Tokens of the step from which the time of the arithmetic of a token is taken."""


@dataclass(frozen=True, slots=True)
class KernelSteps(LatencyModel):
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
    sequence_us: float = 0.0
    """Work of the host for each request of a step that no kernel hides."""
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
        if not shape.prefill_tokens:
            return self.decode_time(decodes, shape.decode_context_tokens)
        fixed_us = self._fixed_us(shape.prefill_tokens + decodes, prompts, decodes, shape.draft_tokens)
        if not prompts and decodes:
            attention_us = self._verification_us(shape) * self.scales.decode_attention
            return whole_micros(max(attention_us + fixed_us, self._least_us))
        fixed_us += self._prompt_us(shape)
        if not decodes:
            return whole_micros(max(fixed_us, self._least_us))
        decode_us = self._beside_prompts_us(decodes, shape.decode_context_tokens) * self.scales.decode_attention
        return whole_micros(max(decode_us + fixed_us, self._least_us))

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        """Return the duration of a forward pass in which each data-parallel rank computes the batch of its shape.

        All but the experts takes as long as on the slowest rank. Experts compute the tokens of all ranks, which are
        padded to the largest batch where all ranks only decode.
        """
        tokens = [shape.num_tokens for shape in shapes]
        only_decode = not any(shape.prefill_tokens for shape in shapes)
        shared_us = self._experts_us(max(tokens) if only_decode else sum(tokens) / len(tokens))
        own_us = max(self.step_time(each) - self._experts_us(count) for each, count in zip(shapes, tokens, strict=True))
        return whole_micros(own_us + shared_us)

    def _experts_us(self, num_tokens: float) -> float:
        """Return the time of experts in a step with so many tokens on each rank."""
        padded = next((size for size in self.graph_sizes if size >= num_tokens), num_tokens)
        return self.scales.experts * float(np.interp(padded, self.grids.tokens, self.grids.token_us[_EXPERTS]))

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

    def _verification_us(self, shape: BatchShape) -> float:
        """Return the attention, as measured, of a step in which sequences decode and verify drafts.

        The KV cache of a sequence is read once for its token and all of its drafts. Their arithmetic, which is that of
        a chunk of a prompt, goes on meanwhile.
        """
        requests, drafts, context = shape.decode_requests, shape.prefill_tokens, shape.decode_context_tokens
        read_us = self._beside_prompts_us(requests, context + drafts)
        return max(read_us, self._prompts.time_us(requests, 1 + drafts / requests, context / requests))

    def _fixed_us(self, num_tokens: int, prompts: int, decodes: int, drafts: int = 0) -> float:
        """Return the time of a step without attention, by the numbers of its tokens, requests and drafts."""
        host = self.host
        sampled, requests = decodes + drafts, prompts + decodes
        sampling = min(prompts + sampled, LARGEST_STEP_TOKENS)
        if num_tokens > LARGEST_STEP_TOKENS:
            tokens_us = self._tokens_us[-1] + self._beyond_us * (num_tokens - LARGEST_STEP_TOKENS)
        else:
            tokens_us = self._tokens_us[num_tokens]
        kernels_us = tokens_us + self._head_us[sampling]
        return (
            kernels_us
            + host.step_us
            + host.prompt_us * prompts
            + host.request_us * sampled
            + self.sequence_us * requests
        )

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
        if shape.decode_requests and shape.prefill_tokens and not shape.prefill_requests:
            return 0.0, self._verification_us(shape), 0.0, 0.0
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
        times.append(self._head_us[min(shape.num_sampled, LARGEST_STEP_TOKENS)])
        times += [prompt_us * scales.prompt_attention, decode_us * scales.decode_attention]
        host = self.host
        times.append(
            host.step_us
            + host.prompt_us * shape.prefill_requests
            + host.request_us * (shape.decode_requests + shape.draft_tokens)
            + self.sequence_us * shape.num_requests
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


def _at(line: DecodeLine, tokens: float) -> float:
    segment = bisect_right(line.bounds, tokens)
    return tokens * line.slopes[segment] + line.starts[segment]


def _arithmetic_us(grids: KernelGrids) -> float:
    matmul_us, experts_us = grids.token_us[0], grids.token_us[1]
    return float(np.interp(_TOKENS_OF_RATE, grids.tokens, matmul_us + experts_us)) / _TOKENS_OF_RATE
