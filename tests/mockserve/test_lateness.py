"""Histograms, and the warning when frames leave late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.metrics.counters import WINDOW_S, Histogram, Lateness


def test_an_observation_equal_to_a_bound_belongs_to_it() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 9):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert (histogram.count, histogram.total) == (5, 17)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], fraction: float) -> None:
    bounds = (0.5, 1.0, 2.0, 4.0, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    rank = max(0, -(-fraction * len(values) // 1) - 1)
    exact = sorted(values)[int(rank)]
    upper = next(bound for bound in bounds if exact <= bound)
    lower = max([0.0, *(bound for bound in bounds if bound < upper)])
    assert lower <= histogram.quantile(fraction) <= upper


def test_an_empty_histogram_has_quantile_zero() -> None:
    assert Histogram((1, 2)).quantile(0.99) == 0


def frames(lateness: Lateness, seconds: float, until_s: float, since_s: float = 0.0) -> None:
    """A frame every 10 ms, each so late."""
    for tick in range(int(since_s * 100), int(until_s * 100) + 1):
        lateness.observe(seconds, tick / 100)


def test_lateness_of_more_than_5_ms_is_reported_once_a_window() -> None:
    warnings: list[str] = []
    lateness = Lateness(warnings.append)
    frames(lateness, 0.008, 2.5 * WINDOW_S)
    assert len(warnings) == 2
    assert "p99" in warnings[0]
    assert lateness.p99_s == pytest.approx(0.01, rel=0.01)


def test_lateness_that_is_over_is_not_reported_again() -> None:
    warnings: list[str] = []
    lateness = Lateness(warnings.append)
    frames(lateness, 0.008, WINDOW_S)
    frames(lateness, 0.0002, 3 * WINDOW_S, since_s=WINDOW_S + 0.01)
    assert len(warnings) == 1
    assert lateness.p99_s < 0.0005


def test_a_server_that_keeps_up_reports_nothing() -> None:
    warnings: list[str] = []
    frames(Lateness(warnings.append), 0.002, 3 * WINDOW_S)
    assert warnings == []
