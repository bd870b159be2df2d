"""Sums are the same in every Python."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options.addition import sequential_sum

floats = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)


def test_lost_digits_stay_lost() -> None:
    assert sequential_sum([1e100, 1.0, -1e100]) == 0.0
    assert sequential_sum([0.1] * 10) == 0.9999999999999999


@given(st.lists(floats, min_size=1))
def test_each_number_is_added_to_those_before(values: list[float]) -> None:
    assert sequential_sum(iter(values)) == [*accumulate(values)][-1]


def test_the_sum_of_integers_is_one() -> None:
    assert isinstance(sequential_sum([1, 2]), int)
    assert sequential_sum([]) == 0
