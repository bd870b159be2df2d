"""How long answers are, and that they repeat."""

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import Answer, Prose
from mockserve.generation.composer import Composer, natural_length
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.protocol.sampling import SamplingParams

TOKENIZER = BuiltinTokenizer()
PROSE = Prose(TOKENIZER)


def composed(seed: int | str, sampling: SamplingParams, budget: int, fixed_tokens: int | None = None) -> Answer:
    composer = Composer(tokenizer=TOKENIZER, prose=PROSE, fixed_tokens=fixed_tokens)
    return composer.compose(Random(seed), sampling, budget)


def test_equal_seeds_give_equal_answers() -> None:
    assert composed("a", SamplingParams(), 500) == composed("a", SamplingParams(), 500)
    assert composed("a", SamplingParams(), 500) != composed("b", SamplingParams(), 500)


@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(0, 400), st.booleans())
def test_lengths_stay_within_their_bounds(seed: int, budget: int, min_tokens: int, ignore_eos: bool) -> None:
    min_tokens = min(min_tokens, budget)
    answer = composed(seed, SamplingParams(min_tokens=min_tokens, ignore_eos=ignore_eos), budget)
    assert max(1, min_tokens) <= answer.num_tokens <= budget
    assert answer.num_tokens == len(answer.token_ids) == len(answer.token_texts)
    assert (answer.ending.finish_reason == "length") == (answer.texts[-1] != "")
    if ignore_eos:
        assert answer.num_tokens == budget


def test_a_banned_word_is_not_generated() -> None:
    free, bound = (
        composed(1, SamplingParams(ignore_eos=True, bad_words=words), 400) for words in ((), ("the", "of", "."))
    )
    assert " the " in "".join(free.texts)
    assert not any(each in "".join(bound.texts).split() for each in ("the", "of", "The", "."))
    assert TOKENIZER.count("".join(bound.texts)) == 400


def test_only_allowed_tokens_are_generated() -> None:
    ids = tuple(TOKENIZER.encode(" one two three"))
    answer = composed(1, SamplingParams(allowed_token_ids=ids), 50)
    assert set(answer.token_ids) == set(ids)
    assert (answer.num_tokens, answer.ending.finish_reason) == (50, "length")
    answer = composed(1, SamplingParams(allowed_token_ids=(*ids, TOKENIZER.eos_token_id)), 5000)
    assert (answer.ending.finish_reason, answer.token_ids[-1]) == ("stop", TOKENIZER.eos_token_id)


def test_natural_lengths_spread_around_their_median() -> None:
    lengths = [natural_length(Random(seed)) for seed in range(2000)]
    assert statistics.median(lengths) == pytest.approx(200, rel=0.1)
    assert statistics.quantiles(lengths, n=4)[2] == pytest.approx(320, rel=0.1)


def test_a_fixed_length_includes_the_end_marker() -> None:
    answer = composed(1, SamplingParams(), 100, fixed_tokens=10)
    assert (answer.num_tokens, answer.ending.finish_reason, answer.texts[-1]) == (10, "stop", "")
    assert answer.token_ids[-1] == TOKENIZER.eos_token_id
    assert composed(1, SamplingParams(), 10, fixed_tokens=11).ending.finish_reason == "length"


def test_the_end_marker_comes_after_the_least_number_of_tokens() -> None:
    answer = composed(1, SamplingParams(min_tokens=20), 100, fixed_tokens=5)
    assert (answer.num_tokens, answer.texts[-1]) == (21, "")
