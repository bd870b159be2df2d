"""Weights of the coefficients of the trained-physics model, and the deployments it refuses."""

from dataclasses import replace

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.trained_physics import TrainedPhysics
from blis_sim.engine.specs import GpuSpec, ModelSpec

# Rates of one operation and one byte per microsecond, so that times are counts.
GPU = GpuSpec(name="tiny", tflops=1e-6, bandwidth_tb_s=1e-6)
DENSE = ModelSpec(
    name="dense", num_layers=2, hidden_size=8, num_heads=4, num_kv_heads=2, vocab_size=10, intermediate_size=16
)  # fmt: skip
MIXTURE = replace(DENSE, name="mixture", num_layers=4, num_experts=4, num_experts_per_tok=2)
ALPHA = (0.0, 0.0, 0.0)
ONE_PREFILL = BatchShape(
    prefill_requests=1, prefill_tokens=4, prefill_tokens_squared=16, prefill_prompt_work=4 * 10
)  # fmt: skip
TWO_DECODES = BatchShape(decode_requests=2, decode_context_tokens=30)


def time_of(
    term: int, shape: BatchShape, model: ModelSpec = DENSE, tp: int = 1, num_betas: int = 11, **more: int | str
) -> int:
    """The step time when the coefficient at `term` is 1 and all others are 0."""
    beta = tuple(float(index == term) for index in range(num_betas))
    return TrainedPhysics(model, GPU, tp, ALPHA, beta, **more).step_time(shape)  # type: ignore[arg-type]


def test_quantised_weights_are_read_at_their_own_width() -> None:
    assert time_of(2, TWO_DECODES, replace(DENSE, bytes_per_weight=0.5)) == time_of(2, TWO_DECODES) // 4


def test_interleaved_expert_layers_cost_extra_and_uniform_ones_do_not() -> None:
    interleaved = replace(MIXTURE, interleave_moe_layer_step=1)
    assert interleaved.num_moe_layers == 2
    assert time_of(7, TWO_DECODES, interleaved) == 2
    assert time_of(7, TWO_DECODES, MIXTURE) == 1


def test_dispatch_is_paid_only_with_data_parallelism() -> None:
    assert time_of(10, TWO_DECODES, MIXTURE) == 1
    gathered = 4 * (2 / 2) * (2 - 1) / 2 * 2 * 8 * 2
    assert time_of(10, TWO_DECODES, MIXTURE, dp=2) == gathered
    assert time_of(10, TWO_DECODES, MIXTURE, dp=2, moe_comm_backend="pplx") == 2 * gathered


def test_ten_coefficients_weigh_dispatch_like_all_reduce() -> None:
    assert time_of(3, TWO_DECODES, MIXTURE, dp=2, num_betas=10) == time_of(10, TWO_DECODES, MIXTURE, dp=2)


def test_nine_coefficients_take_the_slower_of_compute_and_kv_for_decodes() -> None:
    long_context = BatchShape(decode_requests=1, decode_context_tokens=100_000)
    slower = max(time_of(1, long_context), time_of(9, long_context))
    assert time_of(1, long_context, num_betas=9) == slower


def test_eight_coefficients_take_the_slower_of_compute_and_kv_for_prefills_too() -> None:
    slow_memory = replace(GPU, bandwidth_tb_s=1e-12)
    beta = (1.0, 0, 0, 0, 0, 0, 0, 0)
    latency = TrainedPhysics(DENSE, slow_memory, 1, ALPHA, beta)
    assert latency.step_time(ONE_PREFILL) == time_of(8, ONE_PREFILL) * 1_000_000


def test_fp8_weights_compute_at_the_fp8_peak_where_there_is_one() -> None:
    fp8 = replace(DENSE, bytes_per_weight=1.0)
    beta = (1.0, *[0.0] * 10)
    with_fp8 = TrainedPhysics(fp8, replace(GPU, tflops_fp8=2e-6), 1, ALPHA, beta)
    without = TrainedPhysics(fp8, GPU, 1, ALPHA, beta)
    assert with_fp8.step_time(ONE_PREFILL) * 2 == without.step_time(ONE_PREFILL)


def test_the_three_alphas_are_cut_to_whole_microseconds() -> None:
    latency = TrainedPhysics(DENSE, GPU, 1, (15563.9, 777.9, 45.9), (0.0,) * 11)
    times = (latency.queueing_time(1), latency.queueing_time(9999), latency.post_decode_time, latency.output_token_time)
    assert times == (15563, 15563, 777, 45)


@pytest.mark.parametrize(
    ("model", "tp", "more", "message"),
    [
        (DENSE, 3, {}, "dense has 4 attention heads, which tp 3 does not divide"),
        (replace(DENSE, num_heads=6, num_kv_heads=3), 2, {}, "dense has 3 KV heads, which tp 2 does not divide"),
        (DENSE, 0, {}, "tp and dp must be at least 1, got 0 and 1"),
        (DENSE, 1, {"dp": 2}, "dp must be 1 for a model without experts such as dense, got 2"),
        (MIXTURE, 1, {"dp": 2, "moe_comm_backend": "smoke"}, "moe_comm_backend must be one of allgather_reducescatter"),
        (replace(MIXTURE, num_experts_per_tok=0), 1, {}, "mixture: num_experts_per_tok must be at least 1"),
        (replace(DENSE, intermediate_size=0), 1, {}, "dense: intermediate_size must be at least 1, got 0"),
        (DENSE, 1, {"beta": (1.0,) * 6}, "beta_coeffs must have 7 to 11 values, got 6"),
        (DENSE, 1, {"beta": (1.0,) * 12}, "beta_coeffs must have 7 to 11 values, got 12"),
        (DENSE, 1, {"beta": (-1.0,) * 7}, "beta_coeffs must be finite and at least 0, got -1.0"),
        (DENSE, 1, {"alpha": (float("nan"), 0.0, 0.0)}, "alpha_coeffs must be finite and at least 0, got nan"),
        (DENSE, 1, {"alpha": (0.0, 0.0)}, "alpha_coeffs must have 3 values, got 2"),
    ],
)
def test_a_deployment_that_cannot_be_timed_is_refused(
    model: ModelSpec, tp: int, more: dict[str, object], message: str
) -> None:
    given = {"alpha": ALPHA, "beta": (1.0,) * 11, **more}
    with pytest.raises(EngineError) as refusal:
        TrainedPhysics(model, GPU, tp, **given)  # type: ignore[arg-type]
    assert str(refusal.value).startswith(message)


def ranks_time(shapes: list[BatchShape], *terms: int, tp: int = 1, num_betas: int = 11) -> int:
    """The duration of a forward pass of ranks when the coefficients at `terms` are 1 and all others are 0."""
    beta = tuple(float(index in terms) for index in range(num_betas))
    return TrainedPhysics(MIXTURE, GPU, tp, ALPHA, beta, len(shapes)).ranks_time(shapes)


@pytest.mark.parametrize("num_betas", [7, 9, 10, 11])
@pytest.mark.parametrize("shape", [ONE_PREFILL, TWO_DECODES, ONE_PREFILL._replace(decode_requests=3)])
def test_ranks_with_equal_batches_take_as_long_as_one_batch_of_all(shape: BatchShape, num_betas: int) -> None:
    terms = [term for term in (0, 1, 2, 3, 4, 6, 8, 9, 10) if term < num_betas]
    beta = tuple(float(index in terms) for index in range(num_betas))
    together = TrainedPhysics(MIXTURE, GPU, 2, ALPHA, beta, 3)
    of_all = BatchShape(*(figure * 3 for figure in shape[:8]))
    assert together.ranks_time([shape] * 3) == pytest.approx(together.step_time(of_all), abs=1)


def test_attention_takes_as_long_as_on_the_slowest_rank() -> None:
    longer = TWO_DECODES._replace(decode_context_tokens=300)
    assert ranks_time([TWO_DECODES, longer], 9) == ranks_time([longer, longer], 9)
    assert ranks_time([TWO_DECODES, longer], 5) == 2, "requests are counted on their own rank"


def test_experts_compute_the_tokens_of_all_ranks() -> None:
    nothing = BatchShape()
    alone, both = ranks_time([ONE_PREFILL, nothing], 0), ranks_time([ONE_PREFILL, ONE_PREFILL], 0)
    experts_us = 4 * 4 * 2 * 6 * 8 * 16 // 2
    assert both - alone == experts_us
    assert ranks_time([ONE_PREFILL, nothing], 10) == ranks_time([nothing, ONE_PREFILL], 10)
    assert ranks_time([nothing, nothing], 0) == 1


def test_ranks_that_only_decode_are_padded_to_the_largest_batch() -> None:
    one = BatchShape(decode_requests=1, decode_context_tokens=5)
    many = BatchShape(decode_requests=9, decode_context_tokens=5)
    assert ranks_time([one, many], 1, 10) == ranks_time([many, many], 1, 10)
