"""Clients that count the tokens of what they read find the number that was reported, with any tokenizer."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.generation.answer import Answer, Kind, Prose, Thinking
from mockserve.generation.composer import Composer
from mockserve.generation.tokenizer import BuiltinTokenizer, Tokenizer, load_tokenizer
from mockserve.generation.writing import OutputSpec
from mockserve.protocol.sampling import SamplingParams
from tests.examples import examples
from tests.mockserve.generation.vocabularies import MAKES, write_vocabulary


@pytest.fixture(scope="module", params=["built in", *MAKES])
def composer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Composer:
    return composer_of(tokenizer_of(request.param, tmp_path_factory))


def tokenizer_of(make: str, folders: pytest.TempPathFactory) -> Tokenizer:
    if make == "built in":
        return BuiltinTokenizer()
    return load_tokenizer(str(write_vocabulary(make, folders.mktemp("made"))), 0)


def composer_of(tokenizer: Tokenizer, **settings: Any) -> Composer:
    return Composer(tokenizer=tokenizer, prose=Prose(tokenizer), **settings)


def num_shown_tokens(answer: Answer) -> int:
    """Tokens that have a text: the mark at the end of an answer that ends by itself has none."""
    return answer.num_tokens - (answer.ending.finish_reason == "stop")


@given(st.integers(1, 300), st.integers(0, 1000), st.booleans(), st.integers(0, 50))
@settings(max_examples=examples(30))
def test_prose_has_the_tokens_that_are_reported(
    composer: Composer, budget: int, seed: int, ignore_eos: bool, min_tokens: int
) -> None:
    sampling = SamplingParams(max_tokens=budget, ignore_eos=ignore_eos, min_tokens=min(min_tokens, budget))
    answer = composer.compose(Random(seed), sampling, budget)
    text = "".join(answer.texts)
    assert composer.tokenizer.count(text) == num_shown_tokens(answer)
    assert composer.tokenizer.encode(text) == list(answer.token_ids)[: num_shown_tokens(answer)]


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
@settings(max_examples=examples(20))
def test_an_echo_of_any_text_has_the_tokens_of_that_text(composer: Composer, text: str) -> None:
    echo = composer_of(composer.tokenizer, echoes=True)
    answer = echo.compose(Random(1), SamplingParams(), 10_000, OutputSpec(asked=(text,)))
    shown = "".join(answer.texts)
    assert num_shown_tokens(answer) == composer.tokenizer.count(text)
    assert shown == text or not num_shown_tokens(answer)


@given(st.integers(0, 1000), st.integers(2, 100))
@settings(max_examples=examples(30))
def test_a_stop_string_costs_the_tokens_up_to_its_end(composer: Composer, seed: int, budget: int) -> None:
    sampling = SamplingParams(ignore_eos=True)
    whole = composer.compose(Random(seed), sampling, budget)
    text = "".join(whole.texts)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    found = composer.compose(Random(seed), SamplingParams(ignore_eos=True, stop=(stop,)), budget)
    assert "".join(found.texts) == text[: text.index(stop)]
    assert found.token_ids == whole.token_ids[: found.num_tokens]
    assert len("".join(found.token_texts)) >= text.index(stop) + len(stop)
    assert len("".join(found.token_texts[:-1])) < text.index(stop) + len(stop)


@given(st.integers(0, 1000), st.integers(20, 200))
@settings(max_examples=examples(20))
def test_reasoning_and_answer_are_counted_alone(composer: Composer, seed: int, budget: int) -> None:
    form = OutputSpec(thinking=Thinking(8, is_fixed=True), is_parsed=True)
    answer = composer.compose(Random(seed), SamplingParams(), budget, form)
    reasoning = "".join(each.text for token in answer.deltas or () for each in token if each.kind is Kind.REASONING)
    assert composer.tokenizer.count(reasoning) == 8
