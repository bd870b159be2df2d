"""Kernel times of one deployment on grids, in microseconds: what is interpolated to time a step."""

from dataclasses import dataclass, field
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
