"""Steps made of kernel times: single steps, many at once, CUDA graphs, prompts and their sums."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels import HostOverheads, KernelScales, KernelSteps
from blis_sim.engine.latency.wrapped import PeakWatch, StepPeaks
from tests.engine.latency.kernels.made_up import CONTEXT, HOST, REQUESTS, TOKENS, grids, steps
from tests.examples import examples

LATENCY, EAGER = steps(), steps(launch_us=40.0, graph_sizes=())
NOT_AHEAD = replace(EAGER, sequence_us=21.0)
UNPACKED = KernelSteps(grids(), HOST, graph_sizes=LATENCY.graph_sizes, decode_rows=64)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 1500), st.integers(0, 300_000_000), st.integers(1, 80), st.booleans())
def test_many_decode_steps_take_what_single_ones_take(requests: int, context: int, count: int, is_eager: bool) -> None:
    latency = NOT_AHEAD if is_eager else LATENCY
    one_by_one = [latency.step_time(decodes(requests, context + step * requests)) for step in range(count)]
    assert latency.decode_times(decodes(requests, context), count).tolist() == one_by_one
    assert latency.decode_timer()(requests, context) == one_by_one[0]


@pytest.mark.parametrize(
    ("shape", "requests"),
    [
        (decodes(30, 9_000), 30),
        (BatchShape(2, 200, 20_000, 0, 0, 20_000, 3, 900), 5),
        (BatchShape(0, 12, 0, 0, 0, 0, 4, 900, draft_tokens=12), 4),
    ],
)
def test_the_host_works_on_each_request_of_a_step_and_not_on_its_drafts(shape: BatchShape, requests: int) -> None:
    slower = replace(LATENCY, sequence_us=21.0)
    assert slower.step_time(shape) - LATENCY.step_time(shape) == pytest.approx(21 * requests, abs=1)
    host_ms = [each.operation_times_ms(shape)[-1] for each in (slower, LATENCY)]
    assert host_ms[0] - host_ms[1] == pytest.approx(0.021 * requests)


def test_steps_of_decodes_are_timed_without_shapes_and_their_sums_are_kept() -> None:
    assert LATENCY.decode_timer() == LATENCY.decode_time
    assert LATENCY.decode_sums is LATENCY.decode_sums
    assert LATENCY.decode_times(BatchShape(), 2).tolist() == [1, 1]
    assert LATENCY.step_time(BatchShape()) == 1


def test_a_watch_for_too_fast_steps_adds_no_call_to_the_time_of_a_decode() -> None:
    peaks = StepPeaks(token_us=1, head_us=1, pair_us=1, weights_us=1, kv_us=1)
    assert PeakWatch(LATENCY, peaks, "kernels").decode_timer() == LATENCY.decode_time


@pytest.mark.parametrize("requests", REQUESTS[:3])
@pytest.mark.parametrize("context", CONTEXT[1:4])
def test_a_step_on_the_grid_is_the_sum_of_its_kernels_and_of_the_host(requests: int, context: int) -> None:
    found = steps(graph_sizes=()).step_time(decodes(requests, requests * (context - 1)))
    times, at = grids(), REQUESTS.index(requests)
    tokens_us = float(np.interp(requests, TOKENS, times.token_us.sum(axis=0) + times.head_us))
    attention_us = times.decode_us[at, CONTEXT.index(context)]
    assert found == pytest.approx(tokens_us + attention_us + HOST.step_us + HOST.request_us * requests, abs=1)


def test_a_batch_is_padded_to_the_next_cuda_graph_and_only_up_to_the_largest() -> None:
    def beside_attention(requests: int) -> float:
        return LATENCY._tokens_us[requests]

    assert beside_attention(33) == beside_attention(64) > beside_attention(32)
    assert beside_attention(65) < beside_attention(66)


def test_without_cuda_graphs_a_step_takes_at_least_what_the_host_takes_to_start_its_kernels() -> None:
    assert EAGER.step_time(decodes(1, 10)) == 40 * 440
    assert EAGER.step_time(BatchShape(1, 10, 100, 0, 0, 100)) == 40 * 440
    long = BatchShape(1, 4096, 4096**2, 0, 0, 4096**2)
    assert EAGER.step_time(long) == steps(graph_sizes=()).step_time(long)


def prompts(count: int, new: int, before: int, decoding: int = 0, context: int = 0) -> BatchShape:
    total = count * new
    return BatchShape(
        count, total, total * new, count * before, total * before, total * (before + new), decoding, context
    )


def test_equal_prompts_take_the_attention_of_the_grid() -> None:
    times = grids()
    assert LATENCY._prompts.time_us(4, 1000, 1000) == pytest.approx(times.prompt_us[1, 2, 1])
    assert LATENCY._prompts.time_us(1, 100, 25_500) == pytest.approx(times.prompt_us[0, 1, 1:].mean())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 8), st.integers(1, 4000), st.integers(0, 20_000), st.integers(0, 200))
def test_more_of_anything_never_makes_a_step_shorter(count: int, new: int, before: int, decoding: int) -> None:
    shape = prompts(count, new, before, decoding, 500 * decoding)
    more = (
        prompts(count + 1, new, before, decoding, 500 * decoding),
        prompts(count, new + 50, before, decoding, 500 * decoding),
        prompts(count, new, before + 500, decoding, 500 * decoding),
        prompts(count, new, before, decoding, 500 * decoding + 1000),
    )
    for latency in (LATENCY, UNPACKED):
        assert all(latency.step_time(each) >= latency.step_time(shape) for each in more)


def test_a_decode_beside_a_prompt_takes_the_attention_of_a_chunk_where_heads_are_not_packed_then() -> None:
    packed = steps(graph_sizes=())
    unpacked = KernelSteps(grids(), HOST, decode_rows=64)
    context = 32 * (1000 + 64 - 1)
    alone, mixed = decodes(32, context), prompts(1, 1000, 0, 32, context)
    assert unpacked.step_time(alone) == packed.step_time(alone)
    chunk_us = unpacked._prompts.time_us(32, 64, 1000)
    more_us = chunk_us - packed.parts_us(alone)[1]
    assert more_us > 0
    assert unpacked.step_time(mixed) - packed.step_time(mixed) == pytest.approx(more_us, abs=1)
    prompt_us, decode_us, _, _ = unpacked.parts_us(mixed)
    assert (prompt_us, decode_us) == pytest.approx((packed.parts_us(mixed)[0], chunk_us))
    few = prompts(1, 1000, 0, 1, 1)  # of less context than a chunk has rows
    assert unpacked.step_time(few) >= packed.step_time(few)


def test_a_kernel_for_prompts_and_decodes_starts_once() -> None:
    apart, together = steps(), KernelSteps(grids(), HOST, graph_sizes=LATENCY.graph_sizes, has_one_attention_call=True)
    start_us = float(grids().prompt_us.min())
    mixed = prompts(1, 1000, 0, 32, 32_000)
    assert apart.step_time(mixed) - together.step_time(mixed) == pytest.approx(start_us, abs=1)
    assert apart.parts_us(mixed)[0] - together.parts_us(mixed)[0] == pytest.approx(start_us)
    for shape in (prompts(1, 1000, 0), decodes(32, 32_000)):
        assert together.step_time(shape) == apart.step_time(shape)


def test_a_chunk_sees_the_tokens_before_it() -> None:
    first, second = prompts(1, 2048, 0), prompts(1, 2048, 2048)
    assert LATENCY.step_time(second) - LATENCY.step_time(first) == pytest.approx(2e-3 * 2048 * 2048, rel=0.25)


def test_prompts_right_after_prompts_take_longer() -> None:
    shape = prompts(1, 1000, 0)
    hot = shape._replace(recent_prefill_tokens=4000)
    assert LATENCY.step_time(hot) - LATENCY.step_time(shape) == pytest.approx(
        0.06 * 1000 * LATENCY._arithmetic_us, abs=2
    )


def test_arithmetic_that_makes_a_gpu_hot_by_itself_goes_on_at_the_clock_of_a_hot_gpu() -> None:
    from blis_sim.engine.latency.kernels import FULLY_HOT_US

    cool = KernelSteps(grids(), replace(HOST, burst_again=0.0), graph_sizes=LATENCY.graph_sizes)
    hot_from = int(FULLY_HOT_US / LATENCY._arithmetic_us)
    for tokens, later in ((hot_from, 0), (hot_from + 1000, 1000)):
        shape = prompts(1, tokens, 0)
        more_us = LATENCY.step_time(shape) - cool.step_time(shape)
        assert more_us == pytest.approx(HOST.burst_again * later * LATENCY._arithmetic_us, abs=5)


def test_steps_beyond_the_grid_go_on_in_line() -> None:
    times = [LATENCY.step_time(prompts(8, each, 0)) for each in (8192, 9192, 10_192)]
    assert times[0] < times[1] < times[2]
    assert LATENCY.step_time(decodes(4000, 4000 * 200_000)) > LATENCY.step_time(decodes(4000, 4000 * 100_000))


def test_scales_apply_to_their_class_alone() -> None:
    scaled = KernelSteps(grids(), HOST, KernelScales(decode_attention=2.0), LATENCY.graph_sizes)
    shape = decodes(32, 32 * 999)
    assert scaled.step_time(shape) - LATENCY.step_time(shape) == pytest.approx(grids().decode_us[2, 2], abs=1)
    assert scaled.step_time(prompts(1, 100, 0)) == LATENCY.step_time(prompts(1, 100, 0))


def test_overheads_outside_of_steps_belong_to_the_host() -> None:
    assert LATENCY.queueing_time(1000) == 4500
    assert (LATENCY.output_token_time, LATENCY.output_sequence_time, LATENCY.post_decode_time) == (900, 70, 0)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(EngineError, match=r"^matmul must be finite and at least 0, got -1.0$"):
        KernelSteps(grids(), HOST, KernelScales(matmul=-1.0))
    nothing = dict.fromkeys(HostOverheads.__dataclass_fields__, 0.0)
    with pytest.raises(EngineError, match=r"^step_us must be finite"):
        KernelSteps(grids(), HostOverheads(**{**nothing, "step_us": float("nan")}))
