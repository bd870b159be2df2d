"""Requests that can never be served are refused, with a reason; all others are let in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.config import max_always_accepted_tokens, refusal_reason
from tests.fakes import config


def test_a_prompt_that_exactly_fills_the_cache_is_let_in() -> None:
    assert refusal_reason(config(total_kv_blocks=2, block_size_tokens=4), input_tokens=8, max_output_tokens=100) is None


def test_a_prompt_one_token_over_the_cache_is_refused() -> None:
    reason = refusal_reason(config(total_kv_blocks=2, block_size_tokens=4), input_tokens=9, max_output_tokens=1)
    assert reason == "the prompt needs 3 KV blocks, the cache has 2"


def test_a_prompt_as_long_as_max_model_len_is_refused() -> None:
    assert refusal_reason(config(max_model_len=10), 10, 0) == "the prompt has 10 tokens, max_model_len is 10"


def test_prompt_and_budget_may_fill_max_model_len_but_not_exceed_it() -> None:
    assert refusal_reason(config(max_model_len=10), 6, 4) is None
    assert (
        refusal_reason(config(max_model_len=10), 6, 5)
        == "prompt and output budget are 6 + 5 tokens, max_model_len is 10"
    )


def test_a_request_without_a_declared_budget_is_let_in() -> None:
    assert refusal_reason(config(max_model_len=10), 9, 0) is None


def test_a_negative_budget_is_refused() -> None:
    assert refusal_reason(config(), 1, -1) == "the output budget is negative (-1)"


def test_an_empty_prompt_is_let_in() -> None:
    assert refusal_reason(config(total_kv_blocks=1), 0, 0) is None


@pytest.mark.parametrize("budget", [0, 1, 10**9])
def test_without_max_model_len_any_budget_is_let_in(budget: int) -> None:
    assert refusal_reason(config(max_model_len=0), 1, budget) is None


@given(st.sampled_from(["blis", "vllm"]), st.integers(3, 12), st.data())
def test_a_request_that_is_surely_served_is_not_refused(
    scheduling: str, total_kv_blocks: int, data: st.DataObject
) -> None:
    max_model_len = data.draw(st.sampled_from([0, *range(2, (total_kv_blocks - 1) * 4)]))
    settings = config(engine=scheduling, max_model_len=max_model_len, total_kv_blocks=total_kv_blocks)
    most = max_always_accepted_tokens(settings)
    assert most >= 1
    input_tokens, max_output_tokens = data.draw(st.integers(1, most)), data.draw(st.integers(0, most))
    assert refusal_reason(settings, input_tokens, max_output_tokens) is None
