"""Token counts: their distribution, and the edges of the rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import LazyModule
from traces.workload.distributions import sample
from traces.workload.spec import Distribution, problem_of

stats = LazyModule("scipy.stats")


def of(kind: str, **params: float) -> Distribution:
    return Distribution(type=kind, params=params)


def drawn(distribution: Distribution, count: int = 1_000, seed: int = 7) -> list[int]:
    lengths: list[int] = sample(distribution, np.random.default_rng(seed), count).tolist()
    return lengths


def empirical(**weights: float) -> Distribution:
    return Distribution(type="empirical", params={name.removeprefix("t"): weight for name, weight in weights.items()})


RECORDED = {
    # The parameters were found from the samples.
    "dist_gaussian": of("gaussian", mean=256, std_dev=105, min=2, max=800),
    "dist_exponential": of("exponential", mean=130),
    "dist_lognormal": of("lognormal", mu=5.0, sigma=0.8),
    "dist_pareto": of("pareto_lognormal", alpha=1.5, xm=50, mu=5.5, sigma=1.2, mix_weight=0.3),
}
distributions = st.sampled_from([*RECORDED.values(), of("constant", value=5), empirical(t3=1, t9=2)])


@pytest.mark.parametrize("name", RECORDED)
def test_lengths_are_distributed_as_in_the_original(name: str, reference: Path) -> None:
    """Two-sample Kolmogorov-Smirnov test at the level of 1 %: 3,000 lengths of theirs, 100,000 of ours."""
    theirs = np.loadtxt(reference / "golden" / "tools" / "arrival" / f"{name}.csv")
    ours = drawn(RECORDED[name], 100_000)
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01


def test_the_test_of_distributions_can_fail(reference: Path) -> None:
    theirs = np.loadtxt(reference / "golden" / "tools" / "arrival" / "dist_gaussian.csv")
    slightly_off = drawn(of("gaussian", mean=246, std_dev=105, min=2, max=800), 100_000)
    assert stats.ks_2samp(slightly_off, theirs).pvalue < 0.001


@given(distributions, st.integers(0, 2**32), st.integers(0, 50), st.integers(0, 50))
def test_a_longer_draw_begins_with_the_same_lengths(kind: Distribution, seed: int, few: int, more: int) -> None:
    assert drawn(kind, few + more, seed)[:few] == drawn(kind, few, seed)


@given(distributions, st.integers(0, 2**32))
def test_lengths_are_at_least_1(kind: Distribution, seed: int) -> None:
    assert min(drawn(kind, 100, seed)) >= 1


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("constant", {"value": 0}, 1),
        ("constant", {"value": 7.9}, 7),
        ("gaussian", {"mean": 50, "std_dev": 5, "min": 0, "max": 0}, 0),
        ("gaussian", {"mean": 50, "std_dev": 5, "min": 90, "max": 30}, 30),
        ("gaussian", {"mean": 2.5, "std_dev": 0, "min": 0, "max": 9}, 3),
        ("gaussian", {"mean": -50, "std_dev": 0, "min": -90, "max": 30}, 1),
        ("exponential", {"mean": 0}, 1),
        ("exponential", {"mean": 1, "min": 500}, 500),
        ("exponential", {"mean": 1e9, "max": 5}, 5),
        ("lognormal", {"mu": 2, "sigma": 0}, 7),
        ("lognormal", {"mu": 900, "sigma": 0, "max": 60}, 60),
        ("pareto_lognormal", {"alpha": 0.0001, "xm": 1, "mu": 900, "sigma": 0, "mix_weight": 0}, 1),
        ("pareto_lognormal", {"alpha": 1, "xm": 9, "mu": 2, "sigma": 0, "mix_weight": 0}, 7),
    ],
)
def test_parameters_without_a_choice_give_one_length(kind: str, params: dict[str, Any], expected: int) -> None:
    assert set(drawn(of(kind, **params))) == {expected}


def test_a_pareto_tail_begins_at_its_scale() -> None:
    lengths = drawn(of("pareto_lognormal", alpha=2, xm=40, mu=2, sigma=0, mix_weight=1), 100_000)
    assert min(lengths) == 40
    assert np.median(lengths) == pytest.approx(40 * 2**0.5, abs=1)


def test_empirical_lengths_come_as_often_as_their_weights() -> None:
    lengths = np.array(drawn(empirical(t0=1, t5=2, t9=1, t7=0, t8=-3), 100_000))
    assert set(lengths.tolist()) == {0, 5, 9}
    assert [(lengths == value).mean() for value in (0, 5, 9)] == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


@given(distributions)
def test_drawable_parameters_have_no_problem(kind: Distribution) -> None:
    assert problem_of(kind) is None
