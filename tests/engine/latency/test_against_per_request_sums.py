"""Sums over the batch give the times that adding up request by request gives, and many steps the times of each."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.blackbox import Blackbox
from blis_sim.engine.latency.model import LatencyModel, whole_micros
from blis_sim.engine.latency.roofline import Roofline
from blis_sim.engine.latency.trained_physics import TrainedPhysics
from blis_sim.engine.specs import GpuSpec, ModelSpec
from tests.engine.latency.per_request import Decode, Prefill, Work, roofline_us, shape_of, trained_physics_us
from tests.engine.latency.random_deployments import BATCHES, BETAS, DECODE_BATCHES, GPUS, models
from tests.examples import examples

TP = st.sampled_from([1, 2, 4, 8])
ALPHA = (0.0, 0.0, 0.0)


@given(model=models(), gpu=GPUS, tp=TP, beta=BETAS, batch=BATCHES)
def test_trained_physics_is_exact_for_any_batch(
    model: ModelSpec, gpu: GpuSpec, tp: int, beta: tuple[float, ...], batch: list[Work]
) -> None:
    latency = TrainedPhysics(model, gpu, tp, ALPHA, beta)
    expected = trained_physics_us(model, gpu, tp, 1, False, beta, batch)
    assert latency.step_time(shape_of(batch)) == whole_micros(expected)


@given(
    model=models(experts=True), gpu=GPUS, tp=TP, dp=st.sampled_from([2, 3, 8]), beta=BETAS, batch=BATCHES,
    backend=st.sampled_from(["naive", "allgather_reducescatter", "pplx", "mori", "deepep_low_latency"]),
)  # fmt: skip
def test_trained_physics_is_exact_with_data_parallel_experts(
    model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, beta: tuple[float, ...], batch: list[Work], backend: str
) -> None:
    latency = TrainedPhysics(model, gpu, tp, ALPHA, beta, dp, backend)
    all_to_all = backend not in ("naive", "allgather_reducescatter")
    expected = trained_physics_us(model, gpu, tp, dp, all_to_all, beta, batch)
    assert latency.step_time(shape_of(batch)) == whole_micros(expected)


@given(model=models(), gpu=GPUS, tp=TP, batch=BATCHES)
def test_roofline_agrees_up_to_the_rounding_of_its_sums(
    model: ModelSpec, gpu: GpuSpec, tp: int, batch: list[Work]
) -> None:
    exact = roofline_us(model, gpu, tp, batch)
    time = Roofline(model, gpu, tp).step_time(shape_of(batch))
    assert whole_micros(exact * (1 - 1e-12)) <= time <= whole_micros(exact * (1 + 1e-12))


@given(beta=st.tuples(*[st.floats(0, 1e5)] * 3), batch=BATCHES)
def test_blackbox_counts_prefill_and_decode_tokens(beta: tuple[float, ...], batch: list[Work]) -> None:
    prefill_tokens = sum(work.tokens for work in batch if isinstance(work, Prefill))
    decode_tokens = sum(isinstance(work, Decode) for work in batch)
    expected = whole_micros(beta[0] + beta[1] * prefill_tokens + beta[2] * decode_tokens)
    assert Blackbox(ALPHA, beta).step_time(shape_of(batch)) == expected


def assert_decode_times_equal_single_steps(latency: LatencyModel, batch: list[Decode], steps: int) -> None:
    shape = shape_of(batch)
    times = latency.decode_times(shape, steps)
    assert times.dtype == np.int64
    grown = [shape.decode_context_tokens + step * shape.decode_requests for step in range(steps)]
    assert times.tolist() == [latency.step_time(shape._replace(decode_context_tokens=sum_)) for sum_ in grown]
    sequences, context = shape.decode_requests, shape.decode_context_tokens
    assert latency.decode_timer()(sequences, context) == latency.step_time(shape)
    if (few_decode_times := latency.few_decodes_timer()) is not None and steps:
        assert few_decode_times(sequences, context, steps) == times.tolist()


STEPS = st.one_of(st.integers(0, 40), st.integers(0, 2000))


@settings(max_examples=examples(60))
@given(
    model=models(experts=True), gpu=GPUS, tp=TP, dp=st.sampled_from([1, 1, 2, 3]), beta=BETAS,
    num_betas=st.integers(7, 11), batch=DECODE_BATCHES, steps=STEPS,
)  # fmt: skip
def test_many_decode_steps_of_trained_physics_with_experts_equal_single_ones(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    dp: int,
    beta: tuple[float, ...],
    num_betas: int,
    batch: list[Decode],
    steps: int,
) -> None:
    latency = TrainedPhysics(model, gpu, tp, ALPHA, beta[:num_betas], dp)
    assert_decode_times_equal_single_steps(latency, batch, steps)


@settings(max_examples=examples(60))
@given(model=models(), gpu=GPUS, tp=TP, beta=BETAS, batch=DECODE_BATCHES, steps=STEPS)
def test_many_decode_steps_of_trained_physics_equal_single_ones(
    model: ModelSpec, gpu: GpuSpec, tp: int, beta: tuple[float, ...], batch: list[Decode], steps: int
) -> None:
    assert_decode_times_equal_single_steps(TrainedPhysics(model, gpu, tp, ALPHA, beta), batch, steps)


@settings(max_examples=examples(60))
@given(model=models(), gpu=GPUS, tp=TP, batch=DECODE_BATCHES, steps=STEPS)
def test_many_decode_steps_of_roofline_equal_single_ones(
    model: ModelSpec, gpu: GpuSpec, tp: int, batch: list[Decode], steps: int
) -> None:
    assert_decode_times_equal_single_steps(Roofline(model, gpu, tp), batch, steps)


@given(beta=st.tuples(*[st.floats(0, 1e5)] * 3), batch=DECODE_BATCHES, steps=st.integers(0, 40))
def test_many_decode_steps_of_blackbox_equal_single_ones(
    beta: tuple[float, ...], batch: list[Decode], steps: int
) -> None:
    assert_decode_times_equal_single_steps(Blackbox(ALPHA, beta), batch, steps)


@given(
    model=models(experts=True),
    gpu=GPUS,
    dp=st.sampled_from([1, 2]),
    beta=BETAS,
    num_betas=st.integers(7, 11),
    batch=BATCHES,
)
def test_a_linear_model_is_its_coefficients_times_its_basis(
    model: ModelSpec, gpu: GpuSpec, dp: int, beta: tuple[float, ...], num_betas: int, batch: list[Work]
) -> None:
    shape = shape_of(batch)
    linear: tuple[TrainedPhysics | Blackbox, ...] = (
        TrainedPhysics(model, gpu, 2, ALPHA, beta[:num_betas], dp),
        Blackbox(ALPHA, beta[:3]),
    )
    for latency in linear:
        basis = latency.basis(shape)
        assert len(basis) == len(latency.coefficients)
        total = sum(coefficient * term for coefficient, term in zip(latency.coefficients, basis, strict=True))
        assert whole_micros(total * (1 - 1e-12)) <= latency.step_time(shape) <= whole_micros(total * (1 + 1e-12))


@given(model=models(), gpu=GPUS, beta=BETAS)
def test_a_step_without_tokens_takes_one_microsecond(model: ModelSpec, gpu: GpuSpec, beta: tuple[float, ...]) -> None:
    for latency in (TrainedPhysics(model, gpu, 1, ALPHA, beta), Roofline(model, gpu, 1), Blackbox(ALPHA, beta[:3])):
        assert latency.step_time(BatchShape()) == 1
        assert latency.decode_times(BatchShape(), 3).tolist() == [1, 1, 1]
