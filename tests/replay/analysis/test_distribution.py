"""Means and percentiles of a group."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.simulation.record import Distribution, distribution

_samples = st.lists(st.integers(0, 10**9), min_size=1, max_size=50)


def of(*values: float) -> Distribution:
    return distribution(np.array(values, np.float64))


def test_an_empty_distribution_is_all_zeros() -> None:
    assert (len(of()), of().mean, of().percentile(99)) == (0, 0, 0)


def test_the_mean_adds_up_in_the_order_given() -> None:
    assert (of(1e16, 1, -1e16).mean, of(1e16, -1e16, 1).mean) == (0, 1 / 3)


@given(_samples)
def test_percentiles_never_fall(sample: list[int]) -> None:
    found = of(*sample)
    figures = [found.percentile(percent) for percent in (0, 10, 50, 90, 95, 99, 100)]
    assert all(lower <= higher for lower, higher in pairwise(figures))
    assert (figures[0], figures[-1]) == (min(sample), max(sample))
    assert min(sample) <= found.mean * (1 + 1e-12)
    assert found.mean <= max(sample) * (1 + 1e-12)


@given(_samples, st.sampled_from([50, 90, 95, 99]))
def test_percentiles_are_the_usual_ones(sample: list[int], percent: int) -> None:
    assert of(*sample).percentile(percent) == pytest.approx(np.percentile(sample, percent))


def test_percentiles_of_many_values_are_those_of_all_of_them() -> None:
    sample = np.random.default_rng(3).integers(0, 10**9, 12_345)
    found = distribution(sample)
    assert (len(found), len(found.ascending) < 300) == (12_345, True)
    for percent in range(101):
        assert found.percentile(percent) == pytest.approx(np.percentile(sample, percent), rel=1e-12)
