"""How far lookups in the tables of measured kernels are from those of the estimator of aiconfigurator-core.

    python -m workshop.kernel_tables_check [--operations N] [--record FILE]

Draws operations of random sizes within the tables of all GPUs, looks up each here and there, and prints the differences
by kind of operation. Needs aiconfigurator-core 0.12.0. `--record` writes a few of them with the estimator's times.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernel_tables import (
    ALL_REDUCE,
    DECODE,
    DELTA_NET,
    EXPERTS,
    HEADS,
    LATENT,
    MATMUL,
    MEASURED,
    PROMPT,
    SPARSE,
    TIMES,
    MeasuredOperation,
    Tables,
    measured_gpus,
    unpacked,
)
from blis_sim.engine.latency.operations import (
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    SparseLatentAttention,
)
from workshop.ending import run_command
from workshop.kernel_estimator import ADDED_TO_PROMPTS_US, Estimator

SEED = 7
_LARGEST_PREFIX_SHARE = 0.9


class Asked(NamedTuple):
    """An operation with the sizes of its batch: tokens, or requests with new tokens and those before, or context."""

    gpu: str
    phase: str
    operation: MeasuredOperation | AttentionOperation
    sizes: tuple[int, ...]


class Drawn:
    """Random operations within the tables of one GPU."""

    def __init__(self, gpu: str, generator: np.random.Generator) -> None:
        self._gpu = gpu
        self._generator = generator

    def of(self, kind: str) -> Asked | None:
        """Return one of a kind, None where the GPU has no table of it."""
        path = MEASURED / f"{self._gpu}.{kind}.npz"
        if not path.is_file():
            return None
        with np.load(path) as stored:
            names = [name for name in stored.files if name.endswith(TIMES)]
            name = str(self._generator.choice(names)).removesuffix(TIMES)
            if kind in (MATMUL, EXPERTS, ALL_REDUCE):
                return self._token_operation(kind, name, stored[f"{name}.sizes"], stored[f"{name}.points"])
            phase = name.split(".")[0]
            part = ".".join(name.split(".")[:2]) if kind == DELTA_NET else phase
            axes = [stored[f"{part}.axis{number}"] for number in range(3)]
            times = unpacked(stored[name + TIMES])
        return self._attention(kind, name, axes, times)

    def _log_uniform(self, least: float, most: float) -> int:
        return round(float(np.exp(self._generator.uniform(np.log(least), np.log(most)))))

    def _token_operation(self, kind: str, name: str, sizes: Any, points: Any) -> Asked:
        tokens = self._log_uniform(points[0], points[-1])
        row = sizes[self._generator.integers(len(sizes))].tolist()
        if kind == ALL_REDUCE:
            width = self._log_uniform(128, 16384)
            gpus = AllReduce(width, row[0])
            return Asked(self._gpu, kind, gpus, (max(1, tokens // width),))
        if kind == EXPERTS:
            hidden, inner, experts, chosen, tp, ep = row
            return Asked(self._gpu, kind, Experts(hidden, inner, experts, chosen, tp, ep, name), (tokens,))
        rows, columns = (self._log_uniform(max(64, axis.min()), axis.max()) for axis in sizes.T)
        return Asked(self._gpu, kind, Matmul(rows, columns, name), (tokens,))

    def _attention(self, kind: str, name: str, axes: list[Any], times: Any) -> Asked:
        """Return an attention between measured ones: up to a random cell that was measured, on all axes."""
        cell = self._generator.choice(np.argwhere(~np.isnan(times)))
        measured = ~np.isnan(times[cell[0]])
        first = np.argwhere(measured).min(axis=0)
        length = self._log_uniform(axes[1][first[0]], axes[1][cell[1]])
        requests = self._log_uniform(axes[2][first[1]], axes[2][cell[2]])
        heads = int(axes[0][cell[0]])
        if kind != DELTA_NET and cell[0] and not np.isnan(times[cell[0] - 1][cell[1], cell[2]]):
            heads = int(self._generator.integers(axes[0][cell[0] - 1], heads + 1))
        phase, *rest = name.split(".")
        attention = _attention_of(kind, rest, heads)
        if phase == DECODE:
            return Asked(self._gpu, f"{kind} {DECODE}", attention, (requests, length))
        before = 0
        if kind in (HEADS, LATENT) and self._generator.random() < 0.5:
            before = int(self._generator.uniform(0, _LARGEST_PREFIX_SHARE) * length)
            length -= before
        if kind == SPARSE:
            before = int(self._generator.integers(129))
        return Asked(self._gpu, f"{kind} {PROMPT}", attention, (requests, length, before))


def _attention_of(kind: str, rest: list[str], heads: int) -> AttentionOperation:
    if kind == HEADS:
        kv_heads, head_size, window, kv_dtype = rest
        return HeadAttention(heads, int(kv_heads) or heads, int(head_size), int(window), kv_dtype)
    if kind == LATENT:
        return LatentAttention(heads, 128, rest[0], rest[1], ())
    if kind == SPARSE:
        architecture, kv_dtype = rest[-2:]
        return SparseLatentAttention(architecture, heads, kv_dtype, ())
    hidden, key_heads, key_size, value_heads, value_size, conv = map(int, rest[1:])
    return DeltaNet(hidden, key_heads, key_size, value_heads, value_size, conv)


def ours_us(asked: Asked) -> float:
    """Return the time of an operation in our tables."""
    tables = Tables(asked.gpu)
    sizes = [np.array([float(size)]) for size in asked.sizes]
    if isinstance(asked.operation, MeasuredOperation):
        return float(tables.token_us(asked.operation, sizes[0])[0])
    if asked.phase.endswith(DECODE):
        return float(tables.decode_us(asked.operation, *sizes)[0])
    return float(tables.context_us(asked.operation, *sizes)[0])


def theirs_us(asked: Asked) -> float:
    """Return the estimator's time."""
    estimator = Estimator(asked.gpu)
    if isinstance(asked.operation, MeasuredOperation):
        return estimator.token_us(asked.operation, asked.sizes[0])
    if asked.phase.endswith(DECODE):
        return estimator.decode_us(asked.operation, *asked.sizes)
    return estimator.context_us(asked.operation, *asked.sizes)


def drawn(count: int) -> Iterator[Asked]:
    """Yield random operations, as many of each kind and GPU."""
    generator = np.random.default_rng(SEED)
    kinds = [(Drawn(gpu, generator), kind) for gpu in measured_gpus() for kind in _KINDS]
    found = 0
    while found < count:
        for gpu, kind in kinds:
            asked = gpu.of(kind)
            if asked is not None and found < count:
                found += 1
                yield asked


def _time_or_none(look_up: Callable[[Asked], float], asked: Asked) -> float | None:
    try:
        return look_up(asked)
    except EngineError:
        return None


_KINDS = (MATMUL, EXPERTS, ALL_REDUCE, HEADS, LATENT, SPARSE, DELTA_NET)


def main() -> int:
    """Print the differences of each kind, and the largest ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=3000)
    parser.add_argument("--record", type=Path, default=None)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, Asked]]] = defaultdict(list)
    recorded = []
    for number, asked in enumerate(drawn(arguments.operations)):
        ours, expected = (_time_or_none(look_up, asked) for look_up in (ours_us, theirs_us))
        if ours is None or expected is None:
            if ours is not expected:
                print(f"only one has {asked}: {ours} here, {expected} there")
            continue
        added_us = ADDED_TO_PROMPTS_US if asked.phase == f"{HEADS} {PROMPT}" else 0.0
        found[asked.phase].append(((ours - expected) / (expected + added_us), asked))
        if number % max(1, arguments.operations // 100) == 0:
            kind = type(asked.operation).__name__
            recorded.append([asked.gpu, asked.phase, kind, *map(list, (asked.operation, asked.sizes)), expected])
    for phase, differences in sorted(found.items()):
        errors = np.abs([difference for difference, _ in differences])
        print(
            f"{phase}: {len(errors)} operations, median {np.nanmedian(errors):.3%}, largest {np.nanmax(errors):.3%}, "
            f"{np.nansum(errors > 0.01)} above 1 %"
        )
        for difference, asked in sorted(differences, key=lambda each: -abs(each[0]))[:3]:
            if abs(difference) > 0.01:
                print(f"    {difference:+.2%} {asked}")
    if arguments.record is not None:
        arguments.record.write_text("\n".join(json.dumps(row) for row in recorded) + "\n")
    return 0


if __name__ == "__main__":
    run_command(main)
