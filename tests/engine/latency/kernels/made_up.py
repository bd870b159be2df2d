"""Kernel times that are simple sums, for tests that run without any tables."""

import numpy as np

from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernels import HostOverheads, KernelGrids, KernelSteps
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.operations import StepOperations

HOST = HostOverheads(
    step_us=300.0,
    prompt_us=200.0,
    request_us=8.0,
    arrival_us=3000.0,
    arrival_token_us=1.5,
    output_us=900.0,
    output_request_us=70.0,
    burst=0.014,
    burst_again=0.06,
)
TOKENS = (1, 8, 64, 256, 512, 1024, 4096, 16384)
REQUESTS = (1, 4, 32, 256, 1024)
CONTEXT = (1, 100, 1000, 10_000, 100_000)
NEW = (1, 100, 1000, 10_000)
BEFORE = (0, 1000, 50_000)


def grids() -> KernelGrids:
    """Times in which every class of kernels and every argument shows."""
    tokens = np.array(TOKENS, dtype=np.float64)
    requests, context = np.array(REQUESTS)[:, None] + 0.0, np.array(CONTEXT)[None, :] + 0.0
    prompts, new, before = np.meshgrid(
        np.array(REQUESTS[:3]) + 0.0, np.array(NEW) + 0.0, np.array(BEFORE) + 0.0, indexing="ij"
    )
    return KernelGrids(
        tokens=TOKENS,
        token_us=np.array([9000 + 31 * tokens, 0 * tokens + 700, 40 + 1.5 * tokens, 350 + 0.5 * tokens]),
        head_us=450 + 1.3 * tokens,
        decode_requests=REQUESTS,
        decode_context=CONTEXT,
        decode_us=400 + 3 * requests + 0.041 * requests * context**0.97,
        prompt_requests=REQUESTS[:3],
        prompt_tokens=NEW,
        prompt_context=BEFORE,
        prompt_us=300 + 0.4 * prompts * new + 2e-3 * prompts * new * (before + new / 2),
        num_layers=40,
        num_kernels=440,
        notes=("something was repaired",),
    )


def steps(launch_us: float = 0.0, graph_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)) -> KernelSteps:
    """A latency model with these times."""
    return KernelSteps(grids(), HOST, graph_sizes=graph_sizes, launch_us=launch_us)


def operations(model: str = "qwen3-14b", tp: int = 1, *, expert_parallel: bool = False) -> StepOperations:
    """The operations of a model of the catalogue."""
    return operations_of(load_model(model), KernelPlacement(tp=tp, expert_parallel=expert_parallel))
