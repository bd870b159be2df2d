"""Bakes the kernel times of one deployment into grids."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels.grids import GRAPH_SIZES, TOKEN_CLASSES, KernelGrids, Times
from blis_sim.engine.latency.kernels.operations import (
    AllReduce,
    AttentionOperation,
    Elementwise,
    Experts,
    SharedExpert,
    StepOperations,
    TokenOperation,
)
from blis_sim.engine.latency.kernels.repairs import RepairedTables

_LARGER = (*range(1280, 4353, 256), 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 24576, 32768)
_EDGES = tuple(tile + 1 for tile in range(1024, 4097, 256))
TOKENS = tuple(sorted({*GRAPH_SIZES, *_LARGER, *_EDGES}))
DECODE_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DECODE_CONTEXT = tuple(sorted({1, *(2**power for power in range(4, 18)), *(3 * 2**power for power in range(6, 16))}))
PROMPT_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPT_TOKENS = (1, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
PROMPT_CONTEXT = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MOST_TOKENS = 65536
"""Prompts of one step with more tokens together are extrapolated."""
_SHARED_BESIDE_ROUTED = 256
"""Up to so many tokens vLLM computes the shared expert on a stream of its own, beside the routed ones."""
_KERNELS_OF_ATTENTION = 3
"""Rotating queries and keys, storing keys and values, and attention itself."""


def bake(operations: StepOperations, tables: RepairedTables) -> KernelGrids:
    """Look up the operations of a step on all grids. Raises EngineError for one that was not measured."""
    kernels = sum(count for _, count in operations.per_token) + _KERNELS_OF_ATTENTION * operations.num_layers
    return KernelGrids(
        tokens=TOKENS,
        token_us=_token_grid(operations.per_token, tables),
        head_us=tables.token_us(operations.head, TOKENS) + tables.token_us(operations.sampler, TOKENS),
        decode_requests=DECODE_REQUESTS,
        decode_context=DECODE_CONTEXT,
        decode_us=_decode_grid(operations.attention, tables),
        prompt_requests=PROMPT_REQUESTS,
        prompt_tokens=PROMPT_TOKENS,
        prompt_context=PROMPT_CONTEXT,
        prompt_us=_prompt_grid(operations.attention, tables),
        num_layers=operations.num_layers,
        num_kernels=kernels + 1,
        notes=tables.notes,
    )


def _token_grid(per_token: Iterable[tuple[TokenOperation, int]], tables: RepairedTables) -> Times:
    sums = {kind: np.zeros(len(TOKENS)) for kind in (Experts, SharedExpert, AllReduce, Elementwise, object)}
    for operation, count in per_token:
        kind = type(operation) if type(operation) in sums else object
        sums[kind] += count * tables.token_us(operation, TOKENS)
    routed, shared = sums[Experts], sums[SharedExpert]
    beside = np.array(TOKENS) <= _SHARED_BESIDE_ROUTED
    experts = np.where(beside, np.maximum(routed, shared), routed + shared)
    by_class = {
        "matmul": sums[object], "experts": experts, "all_reduce": sums[AllReduce], "elementwise": sums[Elementwise],
    }  # fmt: skip
    return np.array([by_class[name] for name in TOKEN_CLASSES])


def _decode_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    def time_us(requests: int, context: int) -> float:
        return sum(count * tables.decode_us(each, requests, context) for each, count in attention)

    return np.array([_measured_part(time_us, requests, DECODE_CONTEXT) for requests in DECODE_REQUESTS])


def _prompt_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    def times_us(requests: int, new: int) -> list[float]:
        def time_us(_: int, before: int) -> float:
            return sum(count * tables.context_us(each, requests, new, before) for each, count in attention)

        return _measured_part(time_us, requests, PROMPT_CONTEXT)

    grid = np.zeros((len(PROMPT_REQUESTS), len(PROMPT_TOKENS), len(PROMPT_CONTEXT)))
    for i, requests in enumerate(PROMPT_REQUESTS):
        for j, new in enumerate(PROMPT_TOKENS):
            too_many = i and requests * new > _MOST_TOKENS
            grid[i, j] = 2 * grid[i - 1, j] if too_many else times_us(requests, new)
    return grid


def _measured_part(time_us: Callable[[int, int], float], requests: int, lengths: Sequence[int]) -> list[float]:
    """Return the times at ascending lengths; those too long to have been measured continue the last ones in line."""
    found: list[float] = []
    for length in lengths:
        try:
            found.append(time_us(requests, length))
        except EngineError:
            if len(found) < 2:
                raise
            slope = (found[-1] - found[-2]) / (lengths[len(found) - 1] - lengths[len(found) - 2])
            found.append(found[-1] + slope * (length - lengths[len(found) - 1]))
    return found
