"""Kernel times of one deployment on grids, in microseconds, and interpolation between their points."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]  # mypyc takes it for a variable unless it says what it is

GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))
"""The batches that vLLM captures CUDA graphs of, up to its largest default."""
CLASSES = ("matmul", "experts", "all_reduce", "elementwise", "head", "prompt_attention", "decode_attention")
"""Kinds of operations, as files and `blis fit` name them."""
TOKEN_CLASSES = CLASSES[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGrids:
    """Times of all layers together.

    `token_us` has the times of a step of so many `tokens` for each of `TOKEN_CLASSES`, `head_us` those of the output
    head for as many requests that sample. `decode_us[i, j]` is the attention of `decode_requests[i]` requests with
    `decode_context[j]` tokens each, `prompt_us[i, j, k]` that of `prompt_requests[i]` prompts of `prompt_tokens[j]` new
    tokens each after `prompt_context[k]` tokens.
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
    """Return the attention of `requests` that decode where each takes as long as a chunk of `rows` prompt tokens, which
    are the last ones of its context."""
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
