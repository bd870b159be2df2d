"""Answers that repeat themselves end where the repetition is complete."""

from hypothesis import given
from hypothesis import strategies as st

from mockserve.content.repetition import first_repetition
from mockserve.protocol.asked.sampling import Repetition


def plain_first_repetition(ids: list[int], wanted: Repetition) -> int | None:
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
        Repetition,
        max_pattern_size=st.integers(1, 5),
        min_pattern_size=st.integers(0, 3),
        min_count=st.integers(2, 4),
    ),
)
def test_it_is_found_where_the_definition_says(ids: list[int], wanted: Repetition) -> None:
    assert first_repetition(ids, wanted) == plain_first_repetition(ids, wanted)
