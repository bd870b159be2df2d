from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.bench.serve_load import Ramp, arrivals_us


def test_at_an_unlimited_rate_all_are_due_at_once() -> None:
    assert arrivals_us(3, inf, 1.0, 0) == [0, 0, 0]


@given(st.integers(1, 200), st.floats(0.1, 1000), st.sampled_from([0.2, 1.0, 5.0, inf]), st.integers(0, 9))
def test_instants_ascend_and_the_last_is_where_the_rate_puts_it(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    found = arrivals_us(count, rate, burstiness, seed)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(count / rate * 1e6, abs=1)
    assert found == arrivals_us(count, rate, burstiness, seed)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution_of_this_shape(burstiness: float) -> None:
    gaps = np.diff(arrivals_us(20_000, 100.0, burstiness, 3))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_an_infinite_shape_has_equal_gaps() -> None:
    assert arrivals_us(4, 2.0, inf, 0) == [500_000, 1_000_000, 1_500_000, 2_000_000]


def test_a_ramp_goes_from_its_first_rate_to_its_last() -> None:
    linear = arrivals_us(101, inf, inf, 0, Ramp("linear", 1, 11))
    gaps_s = [(later - earlier) / 1e6 for earlier, later in pairwise([0, *linear])]
    assert (gaps_s[0], gaps_s[50], gaps_s[100]) == pytest.approx((1, 1 / 6, 1 / 11), rel=1e-4)
    exponential = Ramp("exponential", 1, 100)
    assert [exponential.rate(place, 3) for place in range(3)] == pytest.approx([1, 10, 100])


def test_a_ramp_from_nothing_begins() -> None:
    assert arrivals_us(3, inf, inf, 0, Ramp("linear", 0, 2)) == [0, 1_000_000, 1_500_000]
