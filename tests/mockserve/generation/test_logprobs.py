"""Log-probabilities of tokens: they rank, add up and repeat as a model's do."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import token_logprobs

CANDIDATES = range(500)
seeds = st.integers(0, 2**40)
ids = st.integers(0, 499)


@given(seeds, ids, st.integers(0, 25), st.booleans())
def test_probabilities_of_a_step_add_up_to_less_than_one(seed: int, token_id: int, num_top: int, greedy: bool) -> None:
    step = token_logprobs(seed, token_id, num_top, CANDIDATES, greedy)
    values = [value for _, value in step.top]
    assert len(step.top) == num_top
    assert sum(map(math.exp, values)) <= 1
    assert values == sorted(values, reverse=True)
    assert len({each for each, _ in step.top}) == num_top


@given(seeds, ids, st.integers(0, 25), st.booleans())
def test_the_chosen_token_stands_at_its_rank(seed: int, token_id: int, num_top: int, greedy: bool) -> None:
    step = token_logprobs(seed, token_id, num_top, CANDIDATES, greedy)
    listed = [each for each, _ in step.top]
    assert (token_id in listed) == (step.rank <= num_top)
    if token_id in listed:
        assert step.top[step.rank - 1] == (token_id, step.logprob)


@given(seeds, ids)
def test_a_greedy_token_is_the_most_likely(seed: int, token_id: int) -> None:
    assert token_logprobs(seed, token_id, 1, CANDIDATES, is_greedy=True).top[0][0] == token_id


@given(seeds, ids, st.integers(0, 20), st.integers(0, 20))
def test_a_longer_list_begins_with_the_shorter_one(seed: int, token_id: int, short: int, more: int) -> None:
    first = token_logprobs(seed, token_id, short, CANDIDATES)
    second = token_logprobs(seed, token_id, short + more, CANDIDATES)
    assert second.top[:short] == first.top
    assert second.logprob == first.logprob


def test_tokens_are_ranked_as_if_drawn() -> None:
    ranks = Counter(token_logprobs(seed, 1, 0, CANDIDATES).rank for seed in range(3000))
    assert ranks[1] > ranks[2] > ranks[3] > 0
    assert 0.4 < ranks[1] / 3000 < 0.8


def test_few_candidates_give_a_short_list() -> None:
    step = token_logprobs(1, 5, 10, [5, 6, 7], is_greedy=True)
    assert sorted(each for each, _ in step.top) == [5, 6, 7]
