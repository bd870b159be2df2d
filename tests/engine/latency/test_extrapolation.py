"""The predictions of the shipped coefficients for batches far beyond those they were learned from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.catalogue import gpu_names, load_gpu, model_names
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS, default_deployment, load_model
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.fitted import Fitted, prefill_pairs
from blis_sim.engine.latency.step_work import step_work

LEARNED = read_coefficients(LEARNED_COEFFICIENTS)
MODEL = Fitted(load_model("qwen3-14b"), load_gpu("H100"), 1, LEARNED.step, LEARNED.request)
WEIGHTS_US = 8_352.23
TOKEN_US = 26.7045
PAIR_US = 40 * 4 * 5120 / 989.5e6
"""Times of an H100 at its peak rates: to read the weights, per token, and per pair of tokens in attention."""


BATCHES = [BatchShape(decode_requests=each, decode_context_tokens=each * 1000) for each in (1, 32, 256)]
SHORT_STEP_US = 3_000
"""In steps that are shorter at peak rates it counts that layers take time to start."""
MOST_TIMES, MOST_TIMES_OF_H20, MOST_TIMES_OF_SHORT = 2.9, 5.7, 20
"""An H20 has a seventh of the arithmetic of an H100 and more bandwidth, which the learned weights do not foresee."""


def prompts(lengths: list[int], context: int = 0) -> BatchShape:
    """Prompts of such lengths, each after so many tokens of its own."""
    return BatchShape(
        prefill_requests=len(lengths),
        prefill_tokens=sum(lengths),
        prefill_tokens_squared=sum(tokens * tokens for tokens in lengths),
        prefill_context_tokens=context * len(lengths),
        prefill_context_work=context * sum(lengths),
    )


@pytest.mark.parametrize("tokens", [128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768])
def test_a_prompt_takes_longer_than_at_peak_rates_but_not_twice_as_long(tokens: int) -> None:
    shape = prompts([tokens])
    at_peak_us = max(WEIGHTS_US, tokens * TOKEN_US) + prefill_pairs(shape) * PAIR_US
    assert 1 < MODEL.step_time(shape) / at_peak_us < 2


@pytest.mark.parametrize("decodes", [1, 8, 64, 256])
@pytest.mark.parametrize("context", [100, 1_000, 30_000])
def test_decodes_take_longer_than_reading_all_they_need_but_hardly_twice_as_long(decodes: int, context: int) -> None:
    at_peak_us = WEIGHTS_US + decodes * context * 163_840 / 3.35e6
    shape = BatchShape(decode_requests=decodes, decode_context_tokens=decodes * context)
    assert 1 < MODEL.step_time(shape) / at_peak_us < 2.1


@pytest.mark.parametrize("gpu_name", gpu_names())
@pytest.mark.parametrize("shape", [*BATCHES, prompts([2048]), prompts([8192])])
def test_no_model_with_weights_of_8_bits_or_more_on_any_gpu_is_faster_than_at_peak_rates_or_much_slower(
    gpu_name: str, shape: BatchShape
) -> None:
    gpu = load_gpu(gpu_name)
    # A part of the models on every GPU keeps the law quick; together the GPUs have them all.
    for name in model_names()[gpu_names().index(gpu_name) :: len(gpu_names())]:
        deployment = default_deployment(name)
        assert deployment is not None
        _, tp = deployment
        spec = load_model(name)
        if spec.bytes_per_weight < 1:
            continue
        model = Fitted(spec, gpu, tp, LEARNED.step, LEARNED.request)
        work = step_work(spec, gpu, tp, 1, "naive", head_size=spec.attention_head_size)
        decodes, context = shape.decode_requests, float(shape.decode_context_tokens)
        memory_us = work.weights_read(shape.num_tokens) + (work.decode_kv(decodes, context) if decodes else 0.0)
        compute_us = work.token_compute(shape.num_tokens) + prefill_pairs(shape) * work.attention_pair_us
        at_peak_us = max(memory_us, compute_us)
        most = MOST_TIMES_OF_H20 if gpu_name == "H20" else MOST_TIMES
        assert (
            1.1 < model.step_time(shape) / at_peak_us < (most if at_peak_us > SHORT_STEP_US else MOST_TIMES_OF_SHORT)
        ), name


@given(
    st.lists(st.integers(1, 32_768), max_size=4),
    st.integers(0, 32_768),
    st.integers(0, 1024),
    st.integers(1, 32_768),
    st.integers(0, 20_000),
    st.integers(1, 4096),
)
def test_more_of_anything_never_takes_less_time(
    lengths: list[int], context: int, decodes: int, decode_context: int, recent: int, more: int
) -> None:
    def time(
        lengths: list[int], context: int, decodes: int = decodes, each: int = decode_context, recent: int = recent
    ) -> int:
        shape = prompts(lengths, context)._replace(decode_requests=decodes, decode_context_tokens=decodes * each)
        return MODEL.step_time(shape._replace(recent_prefill_tokens=recent if lengths else 0))

    before = time(lengths, context)
    assert time([*lengths, more], context) >= before
    assert time([tokens + more for tokens in lengths], context) >= before
    assert time(lengths, context + more) >= before
    assert time(lengths, context, decodes=decodes + more) >= before
    assert time(lengths, context, each=decode_context + more) >= before
    assert time(lengths, context, recent=recent + more) >= before
