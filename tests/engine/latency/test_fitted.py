"""The fitted latency model: step times, and equal results of its three ways to compute them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.fitted import STEP_TERMS, Fitted, RequestCoefficients, StepCoefficients
from blis_sim.engine.latency.wrapped import RangeWatch
from blis_sim.engine.specs import ModelSpec
from tests.coefficients_file import CONTENT

STEP = StepCoefficients(**CONTENT["step"])
REQUEST = RequestCoefficients(**CONTENT["request"])
NOTHING = dict.fromkeys(STEP_TERMS, 0.0)
WEIGHTS_US = 8_352.23
TOKEN_US = 26.7045
"""Qwen3-14B on one H100: 28.0 GB at 3.35 TB/s, and 26.4 GFLOP per token at 989.5 TFLOP/s."""
ONLY_WEIGHTS = {**NOTHING, "weights": 1.0}
TEN_DECODES = BatchShape(decode_requests=10, decode_context_tokens=9_990)


def fitted(tp: int = 1, **step: float) -> Fitted:
    return Fitted(load_model("qwen3-14b"), load_gpu("H100"), tp, dataclasses.replace(STEP, **step), REQUEST)


def only(**step: float) -> Fitted:
    return fitted(1, **{**NOTHING, **step})


def prompt(tokens: int, context: int = 0) -> BatchShape:
    return BatchShape(
        prefill_requests=1,
        prefill_tokens=tokens,
        prefill_tokens_squared=tokens * tokens,
        prefill_context_tokens=context,
        prefill_context_work=tokens * context,
    )


@st.composite
def shapes(draw: st.DrawFn) -> BatchShape:
    prompts = [
        prompt(tokens, context)
        for tokens, context in draw(st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 30_000)), max_size=3))
    ]
    decodes = draw(st.integers(0, 300))
    sums = [sum(values) for values in zip(*prompts, strict=True)] if prompts else [0] * 9
    sums[8] = draw(st.integers(0, 9_000)) if prompts else 0
    sums[6], sums[7] = decodes, decodes * draw(st.integers(1, 5_000))
    return BatchShape(*sums)


@pytest.mark.slow
@given(shapes(), st.sampled_from([1, 2, 8]), st.sampled_from(["qwen3-14b", "qwen3-32b", "mixtral-8x7b"]))
def test_a_step_takes_its_basis_times_the_coefficients(shape: BatchShape, tp: int, name: str) -> None:
    model = dataclasses.replace(fitted(tp), model=load_model(name))
    summed = sum(one * other for one, other in zip(model.coefficients, model.basis(shape), strict=True))
    assert model.step_time(shape) == pytest.approx(max(1, summed), abs=1.001)


@given(st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 400), st.sampled_from([1, 4]))
def test_many_steps_at_once_take_as_long_as_one_by_one(decodes: int, context: int, steps: int, tp: int) -> None:
    model = fitted(tp)
    shape = BatchShape(decode_requests=decodes, decode_context_tokens=context)
    one_by_one = [
        model.step_time(shape._replace(decode_context_tokens=context + step * decodes)) for step in range(steps)
    ]
    assert model.decode_times(shape, steps).tolist() == one_by_one
    in_list = RangeWatch(model, {}).few_decodes_timer()
    assert in_list is not None
    assert in_list(decodes, context, steps) == one_by_one


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 10**6)), max_size=8), st.sampled_from([1, 4]))
def test_a_decode_without_a_shape_takes_as_long_as_with_one(decodes: list[tuple[int, int]], tp: int) -> None:
    model = fitted(tp)
    decode_time = model.decode_timer()
    for requests, context in decodes:
        shape = BatchShape(decode_requests=requests, decode_context_tokens=context)
        assert decode_time(requests, context) == model.step_time(shape)


def test_a_small_step_takes_as_long_as_reading_the_weights() -> None:
    model = only(weights=1.25, tokens=1.5)
    assert model.step_time(prompt(10)) == model.step_time(prompt(100)) == int(1.25 * WEIGHTS_US)


def test_a_large_step_takes_as_long_as_its_arithmetic() -> None:
    assert only(weights=1.25, tokens=1.5).step_time(prompt(1000)) == pytest.approx(1.5 * 1000 * TOKEN_US, abs=1)


def test_layers_take_time_beside_reading_their_weights_but_not_beside_arithmetic() -> None:
    plain, slower = only(weights=1.25, tokens=1.5), only(weights=1.25, tokens=1.5, layer_us=30.0)
    assert slower.step_time(prompt(10)) == pytest.approx(plain.step_time(prompt(10)) + 40 * 30, abs=1)
    assert slower.step_time(prompt(1000)) == plain.step_time(prompt(1000))


def test_experts_are_read_as_far_as_tokens_are_routed_to_them() -> None:
    """Mixtral-8x7B has 8 experts in each of 32 layers and 2 of them for each token; the other 2.9 GB are for all."""
    model = Fitted(load_model("mixtral-8x7b"), load_gpu("H100"), 1, dataclasses.replace(STEP, **ONLY_WEIGHTS), REQUEST)
    shared_us, experts_us = 2_946_498_560 / 3.35e6, 32 * 8 * 3 * 4096 * 14_336 * 2 / 3.35e6
    for num_tokens in (1, 2, 8, 256):
        decodes = BatchShape(decode_requests=num_tokens, decode_context_tokens=num_tokens)
        expected_us = shared_us + experts_us * (1 - 0.75**num_tokens)
        assert model.step_time(decodes) == pytest.approx(expected_us, abs=1)
        assert model.decode_times(decodes, 3).tolist() == [model.step_time(decodes)] * 3


def test_not_all_arithmetic_of_decodes_hides_behind_the_reading_of_weights() -> None:
    added = fitted(decodes=0.5).step_time(TEN_DECODES) - fitted(decodes=0.0).step_time(TEN_DECODES)
    assert added == pytest.approx(0.5 * 10 * TOKEN_US, abs=1)


def test_a_burst_costs_more_the_longer_it_is_up_to_a_limit() -> None:
    model = only(step_us=1.0, burst=0.04)
    assert model.step_time(prompt(500)) == pytest.approx(1 + 0.04 * 500 * TOKEN_US, abs=1)
    assert model.step_time(prompt(1500)) == model.step_time(prompt(8000)) == 1 + 1000


def test_a_burst_takes_longer_the_more_of_another_is_recent() -> None:
    model = only(step_us=1.0, burst_again=0.1)
    times = [model.step_time(prompt(500)._replace(recent_prefill_tokens=recent)) for recent in (0, 400, 1000, 5000)]
    burst_us = 500 * TOKEN_US
    assert times == pytest.approx([1, 1 + 0.1 * burst_us * 400 * TOKEN_US / 25_000, *[1 + 0.1 * burst_us] * 2], abs=1)
    twice = model.step_time(prompt(1000)._replace(recent_prefill_tokens=1000))
    assert twice == pytest.approx(1 + 0.1 * 1000 * TOKEN_US, abs=1)
    longest = model.step_time(prompt(8000)._replace(recent_prefill_tokens=1000))
    assert longest == 1 + 5000


def test_a_tile_begun_is_a_tile_paid() -> None:
    large, small = only(tiles=1.0), only(small_tiles=1.0)
    assert large.step_time(prompt(769)) == large.step_time(prompt(1024))
    assert large.step_time(prompt(1025)) == pytest.approx(1280 * TOKEN_US, abs=1)
    assert small.step_time(prompt(961)) == small.step_time(prompt(1024))
    assert small.step_time(prompt(1025)) == pytest.approx(1088 * TOKEN_US, abs=1)


def test_attention_grows_with_the_square_of_a_prompt_and_with_its_context() -> None:
    model = only(step_us=1.0, attention=1.0)
    whole = model.step_time(prompt(4000)) - 1
    halves = model.step_time(prompt(2000)) + model.step_time(prompt(2000, context=2000)) - 2
    assert whole == pytest.approx(halves, abs=2)
    assert whole == pytest.approx(4 * (model.step_time(prompt(2000)) - 1), abs=4)


def test_reading_the_kv_cache_is_added_to_either() -> None:
    added = fitted().step_time(TEN_DECODES) - fitted(kv=0.0).step_time(TEN_DECODES)
    assert added == pytest.approx(1.1 * 10_000 * 163_840 / 3.35e6, abs=1)


def test_each_prompt_and_each_decode_costs_its_share() -> None:
    model = only(step_us=100.0, prompt_us=7.0, request_us=3.0)
    assert model.step_time(BatchShape(prefill_requests=2, prefill_tokens=9, decode_requests=5)) == 100 + 14 + 15


def test_adding_up_partial_results_costs_time_on_several_gpus_only() -> None:
    assert fitted(tp=1).step_time(prompt(1000)) == fitted(tp=1, all_reduce=9.0).step_time(prompt(1000))
    assert fitted(tp=2).step_time(prompt(1000)) < fitted(tp=2, all_reduce=9.0).step_time(prompt(1000))


def test_overheads_outside_of_steps_are_added() -> None:
    model = fitted()
    assert model.queueing_time(1000) == 3000 + 1500
    assert (model.output_token_time, model.output_sequence_time, model.post_decode_time) == (900, 40, 0)


def test_coefficients_that_make_no_sense_are_refused() -> None:
    with pytest.raises(EngineError, match="kv must be finite and at least 0, got -1"):
        fitted(kv=-1.0)
    with pytest.raises(EngineError, match="must not all be 0"):
        only(kv=1.0)


@pytest.mark.parametrize(
    ("name", "layers", "heads", "kv_heads", "head_size"),
    [("qwen3-32b", 64, 64, 8, 128), ("qwen3-0.6b", 28, 16, 8, 128), ("qwen3-14b", 40, 40, 8, 128)],
)
def test_attention_takes_the_time_of_heads_of_their_declared_size(
    name: str, layers: int, heads: int, kv_heads: int, head_size: int
) -> None:
    gpu = load_gpu("H100")
    attention = Fitted(
        load_model(name), gpu, 1, StepCoefficients(**{**NOTHING, "step_us": 1.0, "attention": 1.0}), REQUEST
    )
    pairs = 10_000 * 10_000 / 2
    expected_us = layers * 4 * heads * head_size * pairs / (gpu.tflops * 1e6)
    assert attention.step_time(prompt(10_000)) == pytest.approx(expected_us + 1, abs=1)

    kv = Fitted(load_model(name), gpu, 1, StepCoefficients(**{**NOTHING, "step_us": 1.0, "kv": 1.0}), REQUEST)
    decodes = BatchShape(decode_requests=1, decode_context_tokens=99_999)
    expected_us = layers * 2 * kv_heads * head_size * 2 * 100_000 / (gpu.bandwidth_tb_s * 1e6)
    assert kv.step_time(decodes) == pytest.approx(expected_us + 1, abs=1)


def test_projections_have_the_width_of_heads_of_their_declared_size() -> None:
    def weights_us(model: ModelSpec) -> int:
        return Fitted(model, load_gpu("H100"), 1, StepCoefficients(**ONLY_WEIGHTS), REQUEST).step_time(TEN_DECODES)

    model, gpu = load_model("qwen3-32b"), load_gpu("H100")
    wider_bytes = 2 * model.num_layers * 5120 * 2 * (64 + 8) * (128 - 5120 // 64)
    without_size = dataclasses.replace(model, head_dim=None)
    added_us = wider_bytes / (gpu.bandwidth_tb_s * 1e6)
    assert weights_us(model) - weights_us(without_size) == pytest.approx(added_us, abs=1)


def test_a_latent_between_hidden_size_and_heads_keeps_an_equal_share_of_the_hidden_size() -> None:
    shape = prompt(1000)
    model = load_model("glm-5.2")
    without_size = dataclasses.replace(model, head_dim=None)
    times = [Fitted(each, load_gpu("H200"), 8, STEP, REQUEST).step_time(shape) for each in (model, without_size)]
    assert model.head_dim == 192
    assert times[0] == times[1]
