"""Answers that repeat themselves end where the repetition is complete."""

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.generation.answer import first_repetition
from mockserve.protocol.sampling import RepetitionDetectionParams
from tests.examples import examples


def plain_first_repetition(ids: list[int], wanted: RepetitionDetectionParams) -> int | None:
    """The definition: the first length whose tail is one pattern, so many times."""
    for length in range(1, len(ids) + 1):
        for size in range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1):
            tail = ids[length - size * wanted.min_count : length]
            if length >= size * wanted.min_count and tail == tail[:size] * wanted.min_count:
                return length
    return None


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.builds(
        lambda least, more, count: RepetitionDetectionParams(
            max_pattern_size=max(1, least + more), min_pattern_size=least, min_count=count
        ),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(2, 4),
    ),
)
def test_a_repetition_is_found_where_the_definition_has_it(ids: list[int], wanted: RepetitionDetectionParams) -> None:
    assert first_repetition(ids, wanted) == plain_first_repetition(ids, wanted)


letters = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@pytest.mark.slow
@given(st.lists(letters, min_size=1, max_size=6), st.integers(1, 4), st.integers(2, 4), st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_finds_patterns_of_many_sizes_in_a_long_answer(
    parts: list[list[int]], times: int, min_count: int, seed: int
) -> None:
    random = Random(seed)
    ids = [random.randrange(50) for _ in range(400)]
    for part in parts:
        at = random.randrange(len(ids))
        ids[at:at] = part * times
    wanted = RepetitionDetectionParams(
        max_pattern_size=len(ids), min_pattern_size=random.randrange(6), min_count=min_count
    )
    assert first_repetition(ids, wanted) == plain_first_repetition(ids, wanted)


def test_a_long_answer_without_cubes_takes_no_quadratic_time() -> None:
    """The sequence of Thue and Morse has squares everywhere, and nothing three times in a row."""
    ids = [number.bit_count() % 2 for number in range(131_072)]
    began_s = time.process_time()
    assert first_repetition(ids, RepetitionDetectionParams(max_pattern_size=10**6, min_count=3)) is None
    assert time.process_time() - began_s < 20, "three thousand million comparisons take minutes"


def test_a_long_answer_of_nearly_one_word_takes_no_quadratic_time() -> None:
    """Tokens mostly equal those before them, whatever the size, and no run is as long as a pattern."""
    random, ids, at = Random(1), [1] * 131_072, 0
    while at < len(ids):
        ids[at] = 2
        at += random.randint(2_500, 5_000)
    wanted = RepetitionDetectionParams(max_pattern_size=10**6, min_pattern_size=5_001, min_count=2)
    began_s = time.process_time()
    assert first_repetition(ids, wanted) is None
    assert time.process_time() - began_s < 20, "comparing token by token takes a minute"
