"""Lookups in the tables that ship: recorded times of an estimator, and laws of what lies between measured sizes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.latency import operations
from blis_sim.engine.latency.kernel_tables import (
    DECODE,
    KINDS,
    MEASURED,
    PROMPT,
    Tables,
    array_of,
    measured_gpus,
    packed,
    unpacked,
)
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.operations import HeadAttention, Matmul

RECORDED = Path(__file__).parent / "recorded_operations.jsonl"
"""Operations of random sizes within the tables: GPU, phase, kind, fields, sizes, and the microseconds that the
estimator of aiconfigurator-core 0.12.0 returned."""


def one_by_one(*values: float) -> tuple[Times, ...]:
    return tuple(np.array([float(value)]) for value in values)


def recorded() -> Iterator[tuple[str, Any, list[int], str, float]]:
    for line in RECORDED.read_text().splitlines():
        gpu, phase, kind, fields, sizes, time_us = json.loads(line)
        operation = getattr(operations, kind)(*(tuple(each) if isinstance(each, list) else each for each in fields))
        yield gpu, operation, sizes, phase, time_us


def looked_up(gpu: str, operation: Any, sizes: list[int], phase: str) -> float:
    tables = Tables(gpu)
    if phase.endswith(DECODE):
        return float(tables.decode_us(operation, *one_by_one(*sizes))[0])
    if phase.endswith(PROMPT):
        return float(tables.context_us(operation, *one_by_one(*sizes))[0])
    return float(tables.token_us(operation, *one_by_one(*sizes))[0])


def test_random_operations_take_what_they_take_in_the_estimator() -> None:
    rows = list(recorded())
    assert len(rows) >= 90
    assert {gpu for gpu, *_ in rows} == set(measured_gpus())
    for gpu, operation, sizes, phase, time_us in rows:
        assert looked_up(gpu, operation, sizes, phase) == pytest.approx(time_us, rel=0.01), (gpu, operation, sizes)


def test_many_sizes_are_looked_up_as_each_alone() -> None:
    tables = Tables("H100")
    tokens, requests, context = np.array([1.0, 300, 40_000]), np.array([1.0, 5, 2000]), np.array([1.0, 3000, 90_000])
    matmul, heads = Matmul(5000, 5000, "fp8"), HeadAttention(20, 4, 128, 0, "fp8")
    for found, alone in (
        (tables.token_us(matmul, tokens), [tables.token_us(matmul, *one_by_one(each))[0] for each in tokens]),
        (
            tables.decode_us(heads, requests, context),
            [tables.decode_us(heads, *one_by_one(*each))[0] for each in zip(requests, context, strict=True)],
        ),
        (
            tables.context_us(heads, requests, context, tokens),
            [tables.context_us(heads, *one_by_one(*each))[0] for each in zip(requests, context, tokens, strict=True)],
        ),
    ):
        assert found.tolist() == pytest.approx(alone, rel=1e-12)


def test_beyond_what_was_measured_times_grow_like_the_work() -> None:
    tables = Tables("B200")
    matmul, heads = Matmul(5120, 5120, "bfloat16"), HeadAttention(32, 8, 128, 0, "bfloat16")
    few, many = tables.token_us(matmul, np.array([65536.0, 131072.0]))
    assert many == pytest.approx(2 * few, rel=0.01)
    short, long = tables.context_us(heads, np.ones(2), np.array([1e5, 2e5]), np.zeros(2))
    assert long == pytest.approx(4 * short, rel=0.1)


def test_a_prompt_after_others_is_its_part_of_the_whole() -> None:
    tables, heads = Tables("H100"), HeadAttention(32, 8, 128, 0, "bfloat16")
    (whole,) = tables.context_us(heads, *one_by_one(1, 4096, 0))
    (half,) = tables.context_us(heads, *one_by_one(1, 2048, 2048))
    assert half == pytest.approx(0.75 * whole)


def test_times_are_stored_within_a_half_per_mille() -> None:
    times = np.array([[0.05, np.nan, 12.5, 1e7], [np.nan, np.nan, 3.0, np.nan]])
    np.testing.assert_allclose(unpacked(packed(times)), times, rtol=2.6e-4)
    with pytest.raises(ValueError, match=r"times must be from 0\.01 us to 1e12 us, got 0\.001"):
        packed(np.array([[0.001]]))


def test_tables_are_small_and_name_their_origin() -> None:
    files = list(MEASURED.glob("*.npz"))
    assert sum(path.stat().st_size for path in files) < 8e6
    assert {path.name.split(".")[1] for path in files} == set(KINDS)
    notice = (MEASURED / "NOTICE.md").read_text()
    assert all(part in notice for part in ("Apache-2.0", "Copyright", "NVIDIA", "Changes", "aiconfigurator-core"))
    assert array_of(MEASURED / "H100.matmul.npz", "nothing") is None
    assert array_of(MEASURED / "T4.matmul.npz", "peaks") is None


def test_a_run_without_kernels_reads_no_tables() -> None:
    code = (
        "import sys\n"
        "from blis_sim.engine.deployment import resolve\n"
        "from blis_sim.engine.deployment_options import DeploymentOptions\n"
        "resolve(DeploymentOptions(model='qwen3-14b', latency_model='fitted', max_model_len=2048))\n"
        "print([name for name in sys.modules if name.endswith(('.tables', '.table_files', '.scaling'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
