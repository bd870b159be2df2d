"""Quantiles of ascending integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.analysis.steady import quantile

INSTANTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=40)


@given(INSTANTS, st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.9, 1.0])))
def test_quantile_is_that_of_numpy_to_the_last_bit(values: list[int], share: float) -> None:
    assert quantile(np.sort(np.array(values, np.int64)), share) == float(np.quantile(np.array(values, np.int64), share))
