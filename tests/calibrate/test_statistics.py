"""The statistics agree with those of numpy, and grades follow the documented limits."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.compare import compare, compare_compat, distribution, grade, is_constant, mape, pearson_r

Floats = npt.NDArray[np.float64]
_pairs = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=3, max_size=60)


def _sides(pairs: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    both = np.array(pairs, dtype=np.float64)
    return both[:, 0], both[:, 1]


@given(_pairs, st.sampled_from(["p50", "p90", "p95", "p99"]))
def test_percentiles_are_linear_between_ranks(pairs: list[tuple[int, int]], name: str) -> None:
    values, _ = _sides(pairs)
    ordered = np.sort(values)
    rank = int(name[1:]) / 100 * (len(ordered) - 1)
    expected = np.interp(rank, np.arange(len(ordered)), ordered)
    assert getattr(distribution(values), name) == pytest.approx(expected)


@given(_pairs)
def test_r_is_pearsons(pairs: list[tuple[int, int]]) -> None:
    real, sim = _sides(pairs)
    r = pearson_r(real, sim)
    if len(set(real)) == 1 or len(set(sim)) == 1:
        assert r is None
    else:
        assert r == pytest.approx(np.corrcoef(real, sim)[0, 1], abs=1e-9)


@given(_pairs)
def test_mape_leaves_out_what_was_zero(pairs: list[tuple[int, int]]) -> None:
    known = [(real, sim) for real, sim in pairs if real]
    expected = sum(abs(real - sim) / real for real, sim in known) / len(known) if known else 0
    assert mape(*_sides(pairs)) == pytest.approx(expected)


@given(_pairs)
def test_bias_is_the_sign_of_the_summed_error(pairs: list[tuple[int, int]]) -> None:
    total = sum(sim - real for real, sim in pairs if real)
    known = any(real for real, _ in pairs)
    expected = ("over-predict" if total > 0 else "under-predict" if total else "neutral") if known else ""
    assert compare(*_sides(pairs)).bias == expected


@pytest.mark.parametrize(
    ("error", "r", "name"),
    [
        (0.09, 0.96, "excellent"),
        (0.10, 0.96, "good"),
        (0.09, 0.95, "good"),
        (0.20, 0.99, "fair"),
        (0.19, 0.85, "fair"),
        (0.34, 0.71, "fair"),
        (0.35, 0.99, "poor"),
        (0.01, 0.70, "poor"),
        (0.01, -1.0, "poor"),
    ],
)
def test_a_grade_needs_both_accuracy_and_correlation(error: float, r: float, name: str) -> None:
    assert grade(error, r) == name


@pytest.mark.parametrize(
    ("spread", "r", "name"),
    [
        (0.10, -1.0, "excellent"),  # varies no more than an excellent error
        (0.11, 0.66, "excellent"),  # 0.11 / hypot(0.11, 0.10 * sqrt(pi / 2)) = 0.6596
        (0.11, 0.65, "good"),
        (0.20, 0.84, "good"),
        (0.20, 0.85, "excellent"),
        (1.00, 0.95, "good"),  # the bound of the grade
        (1.00, 0.951, "excellent"),
    ],
)
def test_a_correlation_counts_as_far_as_the_recorded_values_vary(spread: float, r: float, name: str) -> None:
    assert grade(0.05, r, spread) == name


def test_a_load_of_equal_requests_is_not_poor_for_want_of_anything_to_follow() -> None:
    noise = np.random.default_rng(1).normal(0, 10, (2, 200))
    found = compare(1000 + noise[0], 1000 + noise[1])
    assert found.mape < 0.014
    assert found.pearson_r is not None
    assert abs(found.pearson_r) < 0.2
    assert found.quality == "excellent"


def test_a_constant_metric_is_graded_by_its_error_alone() -> None:
    real = np.array([1000.0, 1001.0, 999.0, 1000.0])
    found = compare(real, np.array([1050.0, 1049.0, 1050.0, 1050.0]))
    assert (found.quality, found.pearson_r) == ("excellent", None)
    assert compare(real, np.full(4, 1250.0)).quality == "fair"
    assert compare(real, np.full(4, 1500.0)).quality == "poor"


def test_two_values_have_no_correlation_and_are_graded_by_their_error() -> None:
    found = compare(np.array([100.0, 200.0]), np.array([115.0, 230.0]))
    assert (found.quality, found.pearson_r) == ("good", None)


def test_a_constant_prediction_of_what_varies_is_poor() -> None:
    found = compare(np.array([80.0, 100.0, 120.0]), np.full(3, 100.0))
    assert (found.quality, found.pearson_r) == ("poor", None)


def test_the_original_grades_a_constant_metric_as_poor() -> None:
    found = compare_compat(np.full(4, 1000.0), np.full(4, 1000.0))
    assert (found.quality, found.pearson_r, found.mape) == ("poor", 0.0, 0.0)


def test_figures_that_vary_by_less_than_a_repetition_are_constant() -> None:
    assert is_constant(np.array([1000.0, 1004.0, 996.0]))
    assert not is_constant(np.array([1000.0, 1010.0, 990.0]))
    assert is_constant(np.zeros(3))
