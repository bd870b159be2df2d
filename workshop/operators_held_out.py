"""Measures how well operators are predicted between their measurements: a quarter of a table is held out.

    python -m workshop.operators_held_out mlp.csv [mlp.csv ...]

Each table is one of Vidur's mlp.csv, gzipped or not, of which rows of all numbers of GPUs are learned apart. Prints the
median and the 90th percentile of the relative error of each method, over all operators.
"""

import csv
import gzip
import time
from pathlib import Path

import numpy as np

from blis_sim.engine.latency.operators import METHODS, MLP_OPERATORS, relative_errors
from workshop.ending import positional, run_command


def main() -> None:
    """Print a line for each table and method."""
    for name in positional("mlp.csv..."):
        path = Path(name)
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        rows = list(csv.DictReader(text.splitlines()))
        for method in METHODS:
            started_s = time.process_time()
            errors = np.concatenate(list(held_out_errors(rows, method)))
            cpu_s = time.process_time() - started_s
            median, high = np.quantile(errors, (0.5, 0.9)) * 100
            print(f"{path} {method}: median {median:.2f} %, P90 {high:.2f} %, {cpu_s:.1f} s of CPU")


def held_out_errors(rows: list[dict[str, str]], method: str) -> list[np.ndarray]:
    """Return the relative errors of each operator and number of GPUs on the quarter that was not learned."""
    found = []
    for tp in sorted({row["num_tensor_parallel_workers"] for row in rows}):
        own = [row for row in rows if row["num_tensor_parallel_workers"] == tp]
        tokens = np.array([[float(row["num_tokens"])] for row in own])
        is_held_out = np.random.default_rng(0).permutation(len(own)) % 4 == 0
        for operator in MLP_OPERATORS:
            cells = [row.get(f"time_stats.{operator}.median", "") for row in own]
            if not all(cells):
                continue
            times = np.array([float(cell) for cell in cells])
            predict = METHODS[method](tokens[~is_held_out], times[~is_held_out])
            found.append(relative_errors(predict(tokens[is_held_out]), times[is_held_out]))
    return found


if __name__ == "__main__":
    run_command(main)
