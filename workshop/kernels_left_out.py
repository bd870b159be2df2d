"""How far kernel times that are scaled from another GPU are off: each measured GPU in turn is left out.

    python -m workshop.kernels_left_out [--deployments N] [--gpu GPU]

Prints the median absolute error of each class of kernels, and of whole steps: those that decode and those of prompts.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernel_profiles import RepairedTables, bake
from blis_sim.engine.latency.kernel_tables import ScaledTables, gpus_with_tables, likeness, nearest_gpus
from blis_sim.engine.latency.kernels import TOKEN_CLASSES, KernelGrids, Times
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.specs import GpuSpec
from workshop.ending import run_command

DEPLOYMENTS = (
    ("llama-3.1-8b-instruct", 1), ("qwen3-14b", 1), ("qwen3-32b", 2), ("llama-3.1-70b-instruct", 4),
    ("llama-2-7b-hf", 1), ("mixtral-8x7b-v0.1", 2), ("qwen3-30b-a3b", 1), ("llama-3.1-8b-instruct-fp8", 1),
    ("llama-3.1-70b-instruct-fp8", 2), ("qwen3-30b-a3b-fp8", 1), ("gpt-oss-120b", 1), ("deepseek-v3", 8),
)  # fmt: skip
"""Model and tensor parallelism."""
BATCHES, CONTEXTS, PROMPTS = (1, 8, 32, 128), (512, 2048, 8192), (512, 2048, 8192)
"""Requests that decode, their contexts, and tokens of one prompt."""


def step_times(grids: KernelGrids) -> dict[str, Times]:
    """Return the times of kernels of steps, by what is in them."""
    tokens_us = grids.token_us.sum(axis=0)

    def of_tokens(tokens: int, requests: int) -> float:
        return float(np.interp(tokens, grids.tokens, tokens_us) + np.interp(requests, grids.tokens, grids.head_us))

    decodes = [
        of_tokens(batch, batch)
        + float(grids.decode_us[grids.decode_requests.index(batch), grids.decode_context.index(context)])
        for batch, context in product(BATCHES, CONTEXTS)
    ]
    prompts = [of_tokens(new, 1) + float(grids.prompt_us[0, grids.prompt_tokens.index(new), 0]) for new in PROMPTS]
    return {"steps that decode": np.array(decodes), "steps of prompts": np.array(prompts)}


def errors(gpu: GpuSpec, deployments: Sequence[tuple[str, int]] = DEPLOYMENTS) -> dict[str, list[float]]:
    """Return the errors of each class of kernels and of steps on a GPU that is left out."""
    measured = gpus_with_tables()
    others = tuple(each for each in measured if each.name != gpu.name)
    found: dict[str, list[float]] = defaultdict(list)
    for name, tp in deployments:
        operations = operations_of(load_model(name), KernelPlacement(tp=tp))
        try:
            own = bake(operations, RepairedTables(gpu, ScaledTables(gpu, (gpu,))))
            scaled = bake(operations, RepairedTables(gpu, ScaledTables(gpu, others)))
        except EngineError:
            continue
        pairs = {
            **{each: (scaled.token_us[place], own.token_us[place]) for place, each in enumerate(TOKEN_CLASSES[:3])},
            "prompt_attention": (scaled.prompt_us, own.prompt_us),
            "decode_attention": (scaled.decode_us, own.decode_us),
        }
        steps = step_times(own)
        pairs |= {each: (times, steps[each]) for each, times in step_times(scaled).items()}
        for each, (times, actual) in pairs.items():
            known = actual > 0
            found[each] += (times[known] / actual[known] - 1).ravel().tolist()
    return found


_CLASSES = (*TOKEN_CLASSES[:3], "prompt_attention", "decode_attention", "steps that decode", "steps of prompts")


def _print_row(name: str, found: dict[str, list[float]]) -> None:
    cells = [f"{np.median(np.abs(found[each])):.0%}" if found[each] else "" for each in _CLASSES]
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployments", type=int, default=len(DEPLOYMENTS), help="only the first so many")
    parser.add_argument("--gpu", default=None, help="leave out only this one")
    arguments = parser.parse_args()
    print(f"| GPU | scaled from | {' | '.join(_CLASSES)} |")
    print(f"|---|---|{'---|' * len(_CLASSES)}")
    pooled: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for gpu in gpus_with_tables():
        if arguments.gpu not in (None, gpu.name):
            continue
        nearest = nearest_gpus(gpu, tuple(each for each in gpus_with_tables() if each.name != gpu.name))[0]
        found = errors(gpu, DEPLOYMENTS[: arguments.deployments])
        _print_row(f"{gpu.name} | {nearest.name}", found)
        for name, values in found.items():
            pooled[likeness(gpu, nearest)][name] += values
    for kind, found in pooled.items():
        _print_row(f"all | {kind}", found)
    return 0


if __name__ == "__main__":
    run_command(main)
