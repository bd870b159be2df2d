"""Tables of experts that memory contradicts are repaired by rule, and others are left alone."""

import numpy as np
import pytest

from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.kernel_profiles import RepairedTables, plausible_experts
from blis_sim.engine.latency.kernel_tables import MeasuredOperation, Tables
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.operations import Experts

H100 = load_gpu("H100")
SCOUT = Experts(hidden_size=5120, inner_size=8192, experts=16, chosen=1, tp=2, ep=1, weights="fp8")
TOKENS = np.array([1, 16, 64, 256, 1024, 4096, 16384], dtype=np.float64)
AS_MEASURED = np.array([139, 1869, 1898, 1654, 1559, 1902, 7932], dtype=np.float64)
IN_16_BITS = np.array([77, 699, 707, 750, 815, 1238, 4622], dtype=np.float64)
"""Microseconds of Llama-4-Scout's experts on one of two H100."""
ALL_READ_US = 16 * 3 * 5120 * 8192 / 2 / 3.35e6


def repaired(experts: Experts, times: Times, wider: Times | None = None) -> tuple[Times, str]:
    return plausible_experts(experts, TOKENS, times, H100, lambda: wider)


def test_experts_far_slower_than_memory_take_the_share_of_their_bits_of_those_in_16() -> None:
    times, note = repaired(SCOUT, AS_MEASURED, IN_16_BITS)
    assert times.tolist() == pytest.approx((20 + (IN_16_BITS - 20) / 2).tolist())
    assert note == (
        "experts in fp8 that take 5.5 times as long as memory takes for them take 0.5 of the time of those in 16 bits"
    )
    assert ALL_READ_US < times[3] < 1.5 * ALL_READ_US


@pytest.mark.parametrize("wider", [None, 4 * IN_16_BITS])
def test_without_a_better_table_they_take_the_usual_time_to_read_so_much(wider: Times | None) -> None:
    times, note = repaired(SCOUT, AS_MEASURED, wider)
    assert times[3] == pytest.approx(20 + 1.5 * ALL_READ_US, rel=1e-6)
    assert note.endswith("take the usual time to read their weights")
    assert (times <= AS_MEASURED).all()
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize(("weights", "times"), [("bfloat16", IN_16_BITS), ("fp8", AS_MEASURED / 2)])
def test_experts_that_are_only_somewhat_slower_stay(weights: str, times: Times) -> None:
    found, note = repaired(SCOUT._replace(weights=weights), times)
    assert found.tolist() == times.tolist()
    assert not note


def test_small_experts_may_take_as_long_as_it_takes_to_start_them() -> None:
    small = SCOUT._replace(inner_size=512, tp=8)
    found, note = repaired(small, np.full(len(TOKENS), 55.0))
    assert found.tolist() == [55.0] * len(TOKENS)
    assert not note


def test_what_only_arithmetic_explains_is_no_matter_of_memory() -> None:
    slow = np.where(TOKENS > 1000, 8.0, 1.0) * IN_16_BITS
    found, note = repaired(SCOUT._replace(weights="bfloat16"), slow)
    assert found.tolist() == slow.tolist()
    assert not note


def test_experts_faster_than_their_bytes_take_what_memory_takes() -> None:
    times, note = repaired(SCOUT, np.full(len(TOKENS), 10.0))
    one_us = ALL_READ_US / 16
    assert times[0] == pytest.approx(one_us)
    assert times[-1] == pytest.approx(ALL_READ_US)
    assert note == "experts in fp8 that beat the memory take what memory takes"


class MadeUpTables(Tables):
    """The times above."""

    def __init__(self) -> None:
        pass

    def token_us(self, operation: MeasuredOperation, tokens: Times) -> Times:
        assert tokens.tolist() == TOKENS.tolist()
        return IN_16_BITS if operation == SCOUT._replace(weights="bfloat16") else AS_MEASURED


def test_tables_are_repaired_with_a_note_when_they_are_read() -> None:
    tables = RepairedTables(H100, MadeUpTables())
    found = tables.token_us(SCOUT, tuple(TOKENS.astype(int).tolist()))
    assert found.tolist() == pytest.approx((20 + (IN_16_BITS - 20) / 2).tolist())
    assert [note for note in tables.notes if "experts in fp8" in note]


def test_repaired_experts_take_their_arithmetic_where_the_gpu_has_little() -> None:
    """Experts in MXFP4 compute in 16 bits: fewer bits to read are no fewer operations."""
    experts = Experts(hidden_size=2880, inner_size=2880, experts=128, chosen=4, tp=1, ep=2, weights="mxfp4")
    h20 = load_gpu("H20")
    arithmetic_us = 2 * TOKENS * 4 * 3 * 2880 * 2880 / 2 / (h20.tflops * 1e6)
    wider = np.maximum(80.0, 1.2 * arithmetic_us)
    times, note = plausible_experts(experts, TOKENS, 20 * wider, h20, lambda: wider)
    assert note.endswith("take 0.25 of the time of those in 16 bits")
    assert (times >= arithmetic_us).all()
