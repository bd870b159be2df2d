"""Answers: their length, their end, and how stop strings cut and hold back text."""

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import Sampling
from mockserve.textgen import Answer, compose, stopped, words
from mockserve.tokenizer import BuiltinTokenizer


def text_of(answer: Answer) -> str:
    return "".join(answer.texts)


@given(st.integers(0, 10_000), st.integers(0, 300))
def test_every_piece_is_one_token(seed: int, count: int) -> None:
    pieces = words(Random(seed), count)
    assert len(pieces) == count
    assert BuiltinTokenizer().count("".join(pieces)) == count


def test_the_same_seed_says_the_same() -> None:
    assert compose(Random("a"), Sampling(), 500) == compose(Random("a"), Sampling(), 500)
    assert compose(Random("a"), Sampling(), 500) != compose(Random("b"), Sampling(), 500)


@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(0, 400), st.booleans())
def test_lengths_stay_within_their_bounds(seed: int, budget: int, min_tokens: int, ignore_eos: bool) -> None:
    min_tokens = min(min_tokens, budget)
    answer = compose(Random(seed), Sampling(min_tokens=min_tokens, ignore_eos=ignore_eos), budget)
    assert max(1, min_tokens) <= answer.num_tokens <= budget
    assert (answer.ending.finish_reason == "length") == (answer.texts[-1] != "")
    if ignore_eos:
        assert answer.num_tokens == budget


def test_natural_lengths_spread_around_their_median() -> None:
    lengths = [compose(Random(seed), Sampling(), 100_000).num_tokens for seed in range(2000)]
    assert statistics.median(lengths) == pytest.approx(200, rel=0.1)
    assert statistics.quantiles(lengths, n=4)[2] == pytest.approx(320, rel=0.1)


def test_a_fixed_length_includes_the_end_marker() -> None:
    answer = compose(Random(1), Sampling(), 100, fixed_tokens=10)
    assert (answer.num_tokens, answer.ending.finish_reason, answer.texts[-1]) == (10, "stop", "")
    assert compose(Random(1), Sampling(), 10, fixed_tokens=11).ending.finish_reason == "length"


def test_the_end_marker_comes_after_the_least_number_of_tokens() -> None:
    answer = compose(Random(1), Sampling(min_tokens=20), 100, fixed_tokens=5)
    assert (answer.num_tokens, answer.texts[-1]) == (21, "")


def test_text_is_held_back_while_it_could_become_a_stop_string() -> None:
    # The pieces and the expected events are those of a captured vLLM stream.
    answer = composed_of([" this", " is", " a", " test", " of"], Sampling(stop=("a test",)))
    assert answer.texts == ["", " th", "is", " is "]
    assert (answer.ending.finish_reason, answer.ending.stop_reason) == ("stop", "a test")


def test_what_was_held_back_comes_with_the_last_token() -> None:
    answer = composed_of([" one", " two", " three"], Sampling(stop=("never",)))
    assert answer.texts == ["", " one", " two three"]
    assert answer.ending.finish_reason == "length"


def test_a_stop_string_may_be_kept() -> None:
    answer = composed_of([" one", " two", " three"], Sampling(stop=("two",), include_stop_str_in_output=True))
    assert answer.texts == [" one", " two"]


stops = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=4)
pieces_of_text = st.lists(st.text(alphabet="ab ", max_size=3), min_size=1, max_size=12)


@given(pieces_of_text, stops, st.integers(0, 5), st.booleans())
def test_stop_strings_end_the_text_where_checking_token_by_token_does(
    pieces: list[str], stop: list[str], min_tokens: int, include: bool
) -> None:
    min_tokens = min(min_tokens, len(pieces))
    sampling = Sampling(stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=include)
    answer = composed_of(pieces, sampling)
    tokens, text, reason = stopped_token_by_token(pieces, sampling)
    assert (answer.num_tokens, text_of(answer), answer.ending.stop_reason) == (tokens, text, reason)


def stopped_token_by_token(pieces: list[str], sampling: Sampling) -> tuple[int, str, str | None]:
    """Tokens, text and stop string by the plain reading of the rule: look for a new match after each token."""
    text = ""
    checked = 0
    for number, piece in enumerate(pieces, start=1):
        text += piece
        if number <= sampling.min_tokens:
            checked = len(text)
            continue
        ends = [
            (text.find(stop, max(0, checked + 1 - len(stop))) + len(stop), order, stop)
            for order, stop in enumerate(sampling.stop)
            if text.find(stop, max(0, checked + 1 - len(stop))) >= 0
        ]
        if ends:
            end, _, stop = min(ends)
            return number, text[: end if sampling.include_stop_str_in_output else end - len(stop)], stop
        checked = len(text)
    return len(pieces), text, None


def composed_of(pieces: list[str], sampling: Sampling) -> Answer:
    """The answer when the model says `pieces` and then runs out of budget."""
    return stopped(pieces, Ending("length"), sampling)
