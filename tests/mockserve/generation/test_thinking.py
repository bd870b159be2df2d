"""Lengths of the reasoning before an answer."""

import statistics
from random import Random
from typing import Any

import pytest

from mockserve.generation.answer import Answer, Kind, Prose, Thinking, read_thinking
from mockserve.generation.composer import Composer
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.generation.writing import OutputSpec
from mockserve.protocol.sampling import SamplingParams

TOKENIZER = BuiltinTokenizer()
COMPOSER = Composer(tokenizer=TOKENIZER, prose=Prose(TOKENIZER))


def lengths(body: dict[str, Any], fixed_tokens: int | None = None) -> list[int]:
    thinking = read_thinking(body, {}, fixed_tokens)
    assert thinking is not None
    return [thinking.num_tokens(Random(seed), 100_000) for seed in range(500)]


@pytest.mark.parametrize(
    ("effort", "median"), [("minimal", 25), ("low", 100), (None, 250), ("medium", 250), ("high", 500), ("max", 2000)]
)
def test_more_effort_is_more_reasoning(effort: str | None, median: int) -> None:
    assert statistics.median(lengths({"reasoning_effort": effort})) == pytest.approx(median, rel=0.1)


def test_thinking_can_be_switched_off() -> None:
    assert read_thinking({"reasoning_effort": "none"}, {}, None) is None
    assert read_thinking({}, {"enable_thinking": False}, None) is None
    assert read_thinking({}, {"thinking": False}, None) is None
    assert read_thinking({}, {"enable_thinking": True}, None) is not None


def test_a_budget_limits_the_reasoning() -> None:
    assert set(lengths({"thinking_token_budget": 5})) == {5}
    assert set(lengths({"thinking_token_budget": 0})) == {0}
    assert max(lengths({"thinking_token_budget": -1})) > 250


def test_the_server_can_fix_the_length() -> None:
    assert set(lengths({"reasoning_effort": "high"}, fixed_tokens=7)) == {7}
    assert set(lengths({"thinking_token_budget": 3}, fixed_tokens=7)) == {3}


def answer(budget: int, thinking: Thinking, **sampling: Any) -> Answer:
    return COMPOSER.compose(
        Random(1), SamplingParams(**sampling), budget, OutputSpec(thinking=thinking, is_parsed=True)
    )


def text(found: Answer, kind: Kind) -> str:
    return "".join(each.text for token in found.deltas or () for each in token if each.kind is kind)


def test_an_answer_begins_with_its_reasoning() -> None:
    found = answer(1000, Thinking(20, is_fixed=True))
    assert found.num_reasoning_tokens == 20 == TOKENIZER.count(text(found, Kind.REASONING))
    assert text(found, Kind.CONTENT)
    assert "<think>" not in text(found, Kind.REASONING) + text(found, Kind.CONTENT)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 10, 50, 300])
def test_reasoning_takes_at_most_half_of_a_budget(budget: int) -> None:
    found = answer(budget, Thinking(1000, is_fixed=True), ignore_eos=True)
    assert (found.num_tokens, found.ending.finish_reason) == (budget, "length")
    assert found.num_reasoning_tokens <= budget // 2
    assert bool(text(found, Kind.CONTENT)) == (budget > 4)


def test_a_budget_of_nothing_leaves_only_the_marks() -> None:
    found = answer(50, Thinking(100, budget_tokens=0), ignore_eos=True)
    assert (found.num_reasoning_tokens, found.num_tokens) == (0, 50)
