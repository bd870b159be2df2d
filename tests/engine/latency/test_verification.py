"""A step that verifies drafts computes them like any other tokens, by every latency model."""

import pytest

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.kernels import KernelSteps
from blis_sim.engine.latency.model import LatencyModel
from tests.engine.latency.kernels.made_up import HOST, grids, steps

CONTEXT = 1_000


def verification(requests: int, drafts: int, context: int = CONTEXT) -> BatchShape:
    """A step in which each request has one token of its own and `drafts` behind it."""
    tokens = requests * drafts
    work = tokens * (context + 1)
    return BatchShape(
        prefill_tokens=tokens,
        prefill_tokens_squared=tokens * drafts,
        prefill_context_work=work,
        prefill_prompt_work=work,
        decode_requests=requests,
        decode_context_tokens=requests * context,
        draft_tokens=tokens,
    )


def latency(name: str, model: str = "gpt-oss-120b", tp: int = 2) -> LatencyModel:
    return resolve(DeploymentOptions(model=model, hardware="H100", tp=tp, latency_model=name)).latency


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("requests", [1, 16, 200])
def test_beside_attention_a_verification_takes_what_a_decode_of_as_many_tokens_takes(
    requests: int, drafts: int
) -> None:
    sut = steps()
    tokens = requests * (1 + drafts)
    verified, plain = verification(requests, drafts), decodes(tokens, tokens * CONTEXT)
    without_attention = sut.step_time(plain) - sut.parts_us(plain)[1]
    assert sut.step_time(verified) - sut.parts_us(verified)[1] == pytest.approx(without_attention, abs=2)


def test_the_cache_of_a_request_is_read_once_for_all_of_its_drafts() -> None:
    sut = steps()
    decode_us = sut.parts_us(decodes(16, 16 * CONTEXT))[1]
    prompt_us, read_us, burst_us, again_us = sut.parts_us(verification(16, 3))
    assert decode_us <= read_us < 1.01 * decode_us
    assert (prompt_us, burst_us, again_us) == (0, 0, 0)


def test_many_drafts_take_the_attention_of_a_chunk_of_prompt() -> None:
    sut = steps()
    chunk_us = sut._prompts.time_us(1, 1001, CONTEXT)
    assert sut.parts_us(verification(1, 1000))[1] == chunk_us > sut.parts_us(decodes(1, CONTEXT + 1000))[1]


def test_where_heads_are_packed_only_for_single_tokens_a_verification_is_attention_of_chunks() -> None:
    unpacked = KernelSteps(grids(), HOST, decode_rows=64)
    expected_us = unpacked._prompts.time_us(32, 64, CONTEXT + 1 + 3 - 64)
    assert unpacked.parts_us(verification(32, 3))[1] == pytest.approx(expected_us, rel=0.01)


def test_the_classes_of_a_verification_add_up_to_its_time() -> None:
    sut = steps()
    assert sum(sut.operation_times_ms(verification(12, 4))) == pytest.approx(
        sut.step_time(verification(12, 4)) / 1e3, abs=2e-3
    )


@pytest.mark.parametrize("name", ["kernels", "fitted", "roofline", "trained-physics"])
@pytest.mark.parametrize("requests", [1, 16, 128])
def test_more_drafts_never_make_a_step_shorter(name: str, requests: int) -> None:
    sut = latency(name)
    times = [sut.step_time(verification(requests, drafts)) for drafts in (1, 2, 3, 7)]
    assert sut.step_time(decodes(requests, requests * CONTEXT)) < times[0]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["kernels", "fitted", "roofline"])
def test_drafts_read_as_many_experts_as_tokens_of_other_requests(name: str) -> None:
    sut = latency(name)
    verified, plain = verification(16, 3), decodes(64, 16 * CONTEXT)
    assert sut.step_time(verified) == pytest.approx(sut.step_time(plain), rel=0.1)
    assert sut.step_time(verified) > 1.5 * sut.step_time(decodes(16, 16 * CONTEXT))
