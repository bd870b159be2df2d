"""Sums are the same in every Python."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options.addition import added_up

floats = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)


def test_lost_digits_stay_lost() -> None:
    assert added_up([1e100, 1.0, -1e100]) == 0.0
    assert added_up([0.1] * 10) == 0.9999999999999999


@given(st.lists(floats, min_size=1))
def test_each_number_is_added_to_those_before(values: list[float]) -> None:
    assert added_up(iter(values)) == [*accumulate(values)][-1]


def test_the_sum_of_integers_is_one() -> None:
    assert isinstance(added_up([1, 2]), int)
    assert added_up([]) == 0
