"""From prompts to what the engine is asked."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import Thinking
from mockserve.generation.structured_outputs.kinds import DeferredForm, read_constraint
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.generation.writing import OutputSpec
from mockserve.kv_events.naming import FastNaming, block_hashes, token_digest
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.sampling import SamplingParams
from mockserve.reply.reply import PlannedChoice
from mockserve.serving.planner import TYPICAL_MAX_TOKENS, Planner, draft_request, likely_tokens


def planner(seed: int = 0, max_model_len: int = 1000) -> Planner:
    return Planner(BuiltinTokenizer(), max_model_len, FastNaming(16), seed)


def planned(by: Planner, *asked: Any) -> list[PlannedChoice]:
    return list(asyncio.run(by.plan(*asked)))


def test_each_choice_is_a_request_of_its_own() -> None:
    choices = planned(planner(), [1, 2, 3], SamplingParams(n=3, max_tokens=20), draft_request("id"))
    assert len({each.request.id for each in choices}) == 3
    assert {each.request.input_tokens for each in choices} == {3}
    assert all(each.request.output_tokens == each.answer.num_tokens for each in choices)


def test_an_id_may_be_used_again() -> None:
    shared = planner()
    (first,), (second,) = (planned(shared, [1], SamplingParams(max_tokens=1), draft_request("id")) for _ in range(2))
    assert first.request.id != second.request.id


def test_without_a_limit_the_rest_of_the_context_is_the_budget() -> None:
    (generation,) = planned(planner(), [1] * 300, SamplingParams(ignore_eos=True), draft_request("id"))
    assert generation.request.max_output_tokens == generation.request.output_tokens == 700


@given(st.integers(1, 999), st.integers(1, 1000))
def test_prompt_and_answer_fit_the_context(prompt_tokens: int, max_tokens: int) -> None:
    (generation,) = planned(
        planner(), [1] * prompt_tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), draft_request("id")
    )
    assert generation.request.output_tokens == min(max_tokens, 1000 - prompt_tokens)


def test_blocks_cover_the_prompt_and_the_answer() -> None:
    tokenizer = BuiltinTokenizer()
    prompt = tokenizer.encode("a prompt of some length " * 10)
    (generation,) = planned(planner(), prompt, SamplingParams(max_tokens=40, ignore_eos=True), draft_request("id"))
    tokens = prompt + tokenizer.encode("".join(generation.answer.texts))
    blocks = generation.request.blocks
    assert [blocks.identity(index) for index in range(len(tokens) // 16)] == list(block_hashes(tokens, 16))


@pytest.mark.parametrize(
    ("sampling", "repeats"),
    [
        (SamplingParams(max_tokens=30), False),
        (SamplingParams(max_tokens=30, seed=1), True),
        (SamplingParams(max_tokens=30, temperature=0.0), True),
    ],
)
def test_an_answer_repeats_only_when_the_request_fixes_it(sampling: SamplingParams, repeats: bool) -> None:
    shared = planner()
    (first,), (second,) = (planned(shared, [1, 2], sampling, draft_request("id")) for _ in range(2))
    assert (first.answer == second.answer) == repeats
    (other_prompt,) = planned(shared, [1, 3], sampling, draft_request("id"))
    (other_server,) = planned(planner(seed=5), [1, 2], sampling, draft_request("id"))
    assert other_prompt.answer != first.answer != other_server.answer


def test_two_servers_with_equal_seeds_give_equal_answers() -> None:
    answers = [
        [planned(planner(), [1], SamplingParams(max_tokens=30), draft_request("id"))[0].answer for _ in range(2)]
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    with pytest.raises(ApiError, match="Token id 128000 is out of vocabulary"):
        planner().check_ids([1, 128_000])
    planner().check_ids([0, 127_999])


@pytest.mark.parametrize(
    "demand",
    [
        {"regex": "[a-z]{3,9}-[0-9]+"},
        {"json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}},
        {"choice": ["yes", "no", "perhaps"]},
    ],
)
async def test_a_worker_writes_what_would_be_written_in_place(demand: dict[str, Any]) -> None:
    in_place = read_constraint({"structured_outputs": demand})
    assert not isinstance(in_place, DeferredForm)
    deferred = DeferredForm(compact_json([*next(iter(demand.items())), None]))
    by, sampling = planner(), SamplingParams(seed=3, n=2)
    try:
        first, second = [
            await by.plan(
                [1, 2], sampling, draft_request("id"), form=OutputSpec(constraint=each, thinking=Thinking(20))
            )
            for each in (in_place, deferred)
        ]
        assert by.executor.pool.pids
    finally:
        by.executor.close()
    assert [each.answer for each in first] == [each.answer for each in second]


async def test_requests_that_come_while_a_worker_writes_change_nothing_of_its_answer() -> None:
    form = OutputSpec(constraint=DeferredForm(compact_json(["regex", "[a-z]{3,9}", None])), thinking=Thinking(20))
    by, sampling = planner(), SamplingParams(seed=3, n=3)
    try:
        alone = await by.plan([1, 2], sampling, draft_request("id"), form=form)
        beside = asyncio.create_task(by.plan([1, 2], sampling, draft_request("id"), form=form))
        while not beside.done():
            await by.plan([7], SamplingParams(max_tokens=5), draft_request("other"))
            await asyncio.sleep(0)
    finally:
        by.executor.close()
    assert [each.answer for each in await beside] == [each.answer for each in alone]


async def test_a_long_answer_is_the_same_wherever_it_is_made() -> None:
    by = planner(max_model_len=10_000)
    sampling = SamplingParams(seed=3, ignore_eos=True, max_tokens=5000)
    assert by.composer.is_long(sampling, 5000, OutputSpec(), [1])
    (found,) = await by.plan([1], sampling, draft_request("id"))
    random = Random(f"0 {token_digest([1])} 3 0 ")
    assert found.answer == by.composer.compose(random, sampling, 5000, OutputSpec(), [1])
    by.executor.close()


@pytest.mark.parametrize(
    ("sampling", "budget", "expected"),
    [
        (SamplingParams(), 20, 20),
        (SamplingParams(), 9_000, TYPICAL_MAX_TOKENS),
        (SamplingParams(min_tokens=700), 9_000, 700),
        (SamplingParams(ignore_eos=True), 9_000, 9_000),
    ],
)
def test_an_answer_that_can_end_is_unlikely_to_fill_a_large_budget(
    sampling: SamplingParams, budget: int, expected: int
) -> None:
    assert likely_tokens(sampling, budget) == expected
