"""Kernels of GPUs without tables: from which GPU they are taken, by which rule, and how far off that was."""

from dataclasses import replace

import numpy as np
import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.kernel_tables import (
    LEFT_OUT,
    LIKE_IT,
    UNLIKE,
    Peaks,
    ScaledTables,
    ScalingErrors,
    Tables,
    gpus_with_tables,
    likeness,
    nearest_gpus,
    scaled,
)
from blis_sim.engine.latency.operations import AllReduce, Experts, HeadAttention, Matmul
from blis_sim.engine.specs import GpuSpec

TOKENS = np.array([1.0, 64.0, 8192.0])


def tables(gpu: GpuSpec) -> ScaledTables:
    return ScaledTables(gpu, gpus_with_tables())


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [("A10", "L40S"), ("L4", "L40S"), ("T4", "A100-SXM"), ("A100-40", "A100-SXM"), ("H20", "H200"), ("A30", "A100-SXM"),
     ("RTX-4090", "L40S"), ("RTX-5090", "RTX-PRO-6000"), ("H100-PCIE", "H100"), ("MI300X", "H200")],
)  # fmt: skip
def test_the_nearest_gpu_has_a_similar_capability_and_a_similar_ratio_of_its_rates(gpu: str, nearest: str) -> None:
    assert nearest_gpus(load_gpu(gpu), gpus_with_tables())[0].name == nearest


def test_a_start_is_kept_and_the_rest_grows_like_the_least_time() -> None:
    assert scaled(np.array([10.0]), np.array([1.0]), np.array([3.0])) == pytest.approx(9 + 3)  # all excess is a start
    assert scaled(np.array([115.0]), np.array([50.0]), np.array([100.0])) == pytest.approx(15 + 200)


def test_a_gpu_with_half_of_the_rates_takes_twice_as_long_for_large_operations() -> None:
    h100 = load_gpu("H100")
    half = replace(h100, name="half", tflops=h100.tflops / 2, bandwidth_tb_s=h100.bandwidth_tb_s / 2, nvlink_gb_s=225)
    own, slower = Tables("H100"), tables(half)
    for operation in (Matmul(8192, 8192, "bfloat16"), AllReduce(8192, 4)):
        times = own.token_us(operation, TOKENS)
        found = slower.token_us(operation, TOKENS)
        assert found[-1] == pytest.approx(2 * times[-1], rel=0.1)
        assert (found >= times).all()
    heads = HeadAttention(32, 8, 128, 0, "bfloat16")
    sizes = np.array([64.0]), np.array([8192.0])
    assert slower.decode_us(heads, *sizes) == pytest.approx(2 * own.decode_us(heads, *sizes), rel=0.05)
    assert list(slower.scaled_from) == ["H100"]


@pytest.mark.parametrize(
    ("weights", "rate"), [("bfloat16", 16), ("int4", 16), ("fp8", 8), ("block fp8", 8), ("nvfp4", 4)]
)
def test_arithmetic_is_in_the_format_of_the_weights_or_else_in_16_bits(weights: str, rate: int) -> None:
    assert Peaks(16.0, 8.0, 4.0, 1.0).operations(weights) == rate
    assert Peaks(16.0, 0.0, 0.0, 1.0).operations(weights) == 16


def test_a_gpu_with_tables_is_not_scaled_where_it_has_them() -> None:
    a100 = tables(load_gpu("A100"))
    matmul = Matmul(4096, 4096, "bfloat16")
    assert a100.token_us(matmul, TOKENS).tolist() == Tables("A100-SXM").token_us(matmul, TOKENS).tolist()
    assert a100.note() == ""
    a100.token_us(matmul._replace(weights="fp8"), TOKENS)
    assert a100.note().startswith("some kernels of A100-SXM were not measured. They are scaled from L40S, ")


def test_what_was_measured_on_no_gpu_is_refused_by_the_nearest() -> None:
    with pytest.raises(EngineError, match=r"^the tables of L40S have no times of Experts\(hidden_size=1, "):
        tables(load_gpu("L4")).token_us(Experts(1, 1, 2, 1, 1, 1, "bfloat16"), TOKENS)


def test_gpus_are_alike_in_their_generation_and_in_their_rates() -> None:
    found = {name: likeness(load_gpu(name), nearest_gpus(load_gpu(name), gpus_with_tables())[0])
             for name in ("A100-40", "H100-PCIE", "L4", "H20", "T4", "MI300X", "A10")}  # fmt: skip
    assert found == {
        "A100-40": LIKE_IT, "H100-PCIE": LIKE_IT, "L4": UNLIKE, "H20": UNLIKE, "T4": UNLIKE, "MI300X": UNLIKE,
        "A10": UNLIKE,
    }  # fmt: skip


@pytest.mark.parametrize(("left_out", "tolerance"), [("H200", LEFT_OUT[LIKE_IT]), ("L40S", LEFT_OUT[UNLIKE])])
def test_a_measured_gpu_that_is_left_out_comes_out_within_the_stated_error(
    left_out: str, tolerance: ScalingErrors
) -> None:
    from workshop.kernels_left_out import errors

    found = errors(load_gpu(left_out), (("llama-3.1-8b-instruct", 1),))
    for steps, expected in (("steps that decode", tolerance.decodes), ("steps of prompts", tolerance.prompts)):
        assert np.median(np.abs(found[steps])) <= 1.5 * expected + 0.01
