from hypothesis import given
from hypothesis import strategies as st

from blis_sim.bench.rate_search import Verdict, search_rate


@given(st.floats(0.01, 1.5), st.floats(1, 1000), st.sampled_from([0.01, 0.1]))
def test_the_rate_found_is_the_highest_good_one_to_within_the_tolerance(
    share: float, served: float, tolerance: float
) -> None:
    limit = share * served
    trials = search_rate(
        lambda rate: float("inf") if rate is None else rate, lambda rate: Verdict(rate <= limit, served), tolerance
    )
    best = max(trial.found for trial in trials if trial.is_good)
    assert best <= limit
    assert best >= min(limit, served) * (1 - tolerance) - 1e-9
    assert len(trials) < 25


def test_when_all_at_once_is_good_nothing_else_is_tried() -> None:
    assert len(search_rate(lambda rate: rate, lambda _: Verdict(True, 1.0), 0.01)) == 1


def test_where_nothing_is_served_nothing_else_is_tried() -> None:
    assert len(search_rate(lambda rate: rate, lambda _: Verdict(False, 0.0), 0.01)) == 1


def test_where_no_rate_is_good_the_search_ends() -> None:
    trials = search_rate(lambda rate: rate, lambda _: Verdict(False, 8.0), 0.01)
    assert not any(trial.is_good for trial in trials)
    assert len(trials) < 15
