"""Gaps between requests: their distribution, and how windows gate or stretch them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import LazyModule
from traces.workload.distributions import FixedCountArrivals, Ints, RenewalProcess, gaps_of, weibull_shape
from traces.workload.spec import Arrival

stats = LazyModule("scipy.stats")

RECORDED = {
    "arr_constant": Arrival(process="constant"),
    "arr_poisson": Arrival(process="poisson"),
    "arr_gamma05": Arrival(process="gamma", cv=0.5),
    "arr_gamma35": Arrival(process="gamma", cv=3.5),
    "arr_weibull05": Arrival(process="weibull", cv=0.5),
    "arr_weibull2": Arrival(process="weibull", cv=2.0),
}
EVERY_KIND = [
    *RECORDED.values(),
    Arrival(process="gamma"),
    Arrival(process="weibull"),
    Arrival(process="gamma", shape=0.7, scale=30_000.0),
    Arrival(process="weibull", shape=0.85, scale=18_000.0),
]
arrival_kinds = st.sampled_from(EVERY_KIND)


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def renewal_process(
    arrival: Arrival, rate: float = 50.0, windows: tuple[tuple[int, int], ...] | None = None
) -> RenewalProcess:
    gaps, mean_gap_us = gaps_of(arrival, rate)
    return RenewalProcess(gaps=gaps, mean_gap_us=mean_gap_us, windows=windows)


def gaps(instants: Ints) -> Ints:
    return np.diff(instants, prepend=0)


@pytest.mark.parametrize("name", RECORDED)
def test_gaps_are_distributed_as_in_the_original(name: str, reference: Path) -> None:
    """Two-sample Kolmogorov-Smirnov test at the level of 1 %: 4,000 gaps of theirs, 40,000 of ours, at 50 a second."""
    theirs = np.loadtxt(reference / "golden" / "tools" / "arrival" / f"{name}.csv")
    ours = gaps(renewal_process(RECORDED[name]).instants(rng(), 800_000_000))
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "arr_poisson"])
def test_the_test_of_distributions_can_fail(name: str, reference: Path) -> None:
    theirs = np.loadtxt(reference / "golden" / "tools" / "arrival" / f"{name}.csv")
    ours = gaps(renewal_process(RECORDED["arr_poisson"]).instants(rng(), 800_000_000))
    assert stats.ks_2samp(ours, theirs).pvalue < 1e-6


@pytest.mark.parametrize("arrival", EVERY_KIND)
def test_gaps_have_the_requested_mean_and_variation(arrival: Arrival) -> None:
    draw, mean_gap_us = gaps_of(arrival, 50.0)
    drawn = draw(rng(), 400_000)
    assert drawn.mean() == pytest.approx(mean_gap_us, rel=0.02)
    if arrival.shape is None:
        assert mean_gap_us == pytest.approx(20_000)
        expected = {"constant": 0.0}.get(arrival.process, arrival.cv or 1.0)
        assert drawn.std() / drawn.mean() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("cv", "shape"), [(1.0, 1.0), (0.5, 2.1013), (2.0, 0.5427)])
def test_the_weibull_shape_gives_the_variation(cv: float, shape: float) -> None:
    assert weibull_shape(cv) == pytest.approx(shape, abs=1e-4)


def test_constant_gaps_are_whole_microseconds_from_the_first_on() -> None:
    assert list(renewal_process(Arrival(process="constant"), 3.0).instants(rng(), 1_400_000)) == [
        333_333,
        666_666,
        999_999,
        1_333_332,
    ]


def test_no_two_arrivals_of_a_client_fall_together() -> None:
    instants = renewal_process(Arrival(process="poisson"), 1e6).instants(rng(), 10_000)
    assert np.diff(instants, prepend=0).min() == 1


@given(arrival_kinds, st.integers(0, 2**32), st.integers(0, 2_000_000), st.integers(0, 2_000_000))
def test_a_longer_look_begins_with_the_same_arrivals(arrival: Arrival, seed: int, early: int, more: int) -> None:
    short = renewal_process(arrival).instants(rng(seed), early)
    long = renewal_process(arrival).instants(rng(seed), early + more)
    assert list(short) == [at for at in long if at <= early]


@given(arrival_kinds, st.integers(0, 2**32))
def test_windows_let_through_what_falls_into_them(arrival: Arrival, seed: int) -> None:
    windows = ((100_000, 300_000), (500_000, 500_001), (700_000, 2_000_000))
    gated = renewal_process(arrival, windows=windows).instants(rng(seed), 10**9)
    everything = renewal_process(arrival).instants(rng(seed), 2_000_000)
    assert list(gated) == [at for at in everything if any(start <= at < end for start, end in windows)]


@given(arrival_kinds, st.integers(0, 2**32), st.integers(0, 50), st.integers(50, 10**7))
def test_stretched_gaps_fill_their_window(arrival: Arrival, seed: int, num_gaps: int, duration_us: int) -> None:
    draw, _ = gaps_of(arrival, 50.0)
    inside = FixedCountArrivals(gaps=draw, num_gaps=num_gaps, start_us=1_000, duration_us=duration_us)
    instants = inside.instants(rng(seed), 10**9)
    assert len(instants) == max(0, num_gaps - 1)
    assert all(1_000 <= at < 1_000 + duration_us for at in instants)
    assert list(instants) == sorted(instants)


def test_the_last_of_all_stretched_gaps_ends_with_the_window() -> None:
    draw, _ = gaps_of(Arrival(process="poisson"), 50.0)
    whole = FixedCountArrivals(gaps=draw, num_gaps=5, start_us=1_000, duration_us=9_000, keeps_last=True)
    instants = whole.instants(rng(), 10**9)
    assert (len(instants), instants[-1]) == (5, 10_000)
    assert list(whole.instants(rng(), 9_999)) == list(instants[:-1])


def test_rates_too_small_to_ever_send_anything_do_no_harm() -> None:
    for arrival in (Arrival(process="poisson"), Arrival(process="weibull", shape=0.001, scale=1.0)):
        instants = renewal_process(arrival, 1e-12).instants(rng(), 10**9)
        assert len(instants) < 2_000
