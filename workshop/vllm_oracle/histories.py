"""The command line of comparisons with a part of vLLM over random histories."""

import argparse
import os
from collections.abc import Callable

from workshop.vllm_oracle.__main__ import ENVIRONMENT


def compare(program: str, description: str, compared: Callable[[int], tuple[str, int]]) -> int:
    """Return the exit code: 1 at the first difference.

    `compared` returns the difference over the history of a seed, and how many operations it compared.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--seeds", type=int, default=1000, help="how many random histories")
    num_seeds = parser.parse_args().seeds
    os.environ.update(ENVIRONMENT)
    num_compared = 0
    for seed in range(num_seeds):
        difference, number = compared(seed)
        num_compared += number
        if difference:
            print(f"seed {seed}: {difference}")
            return 1
    print(f"{num_seeds} histories, {num_compared} operations, 0 differences")
    return 0
