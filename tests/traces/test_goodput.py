"""The goodput rule by itself: which requests count, which are good, and what stricter limits do."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traces import SloTargets
from traces.goodput import Attainment, attainment, limits_us, members_of

_latencies = st.floats(0, 100) | st.just(float("nan"))
_requests = st.lists(
    st.fixed_dictionaries({"ttft": _latencies, "itl": _latencies, "e2e": _latencies, "answered": st.booleans()}),
    max_size=20,
)
_limits = st.floats(0.001, 0.1)
_targets = st.builds(SloTargets, ttft_ms=_limits, itl_ms=_limits, e2e_ms=_limits)


def attained(requests: list[dict[str, float]], targets: SloTargets, duration_s: float = 2.0) -> Attainment:
    """Goodput of requests that all belong to the class of the targets."""
    values = {name: np.array([each[name] for each in requests], np.float64) for name in ("ttft", "itl", "e2e")}
    answered = np.array([each["answered"] for each in requests], np.bool_)
    return attainment(values, limits_us(targets), np.ones(len(requests), np.bool_), duration_s, answered)


def request(ttft: float = 1, itl: float = 1, e2e: float = 1, answered: bool = True) -> dict[str, float]:
    return {"ttft": ttft, "itl": itl, "e2e": e2e, "answered": answered}


def test_a_limit_is_kept_by_what_just_reaches_it() -> None:
    found = attained([request(ttft=5), request(ttft=5.001)], SloTargets(ttft_ms=0.005))
    assert (found.num_good, found.share, found.per_s) == (1, 0.5, 0.5)


def test_all_limits_must_be_met_and_each_has_its_own_share() -> None:
    found = attained([request(), request(ttft=9), request(e2e=9), request()], SloTargets(ttft_ms=0.005, e2e_ms=0.005))
    assert found.num_good == 2
    assert found.by_limit == {"e2e": 0.75, "ttft": 0.75}


def test_an_unanswered_request_is_not_good_and_no_limit_is_checked_for_it() -> None:
    found = attained([request(), request(answered=False)], SloTargets(ttft_ms=0.005))
    assert (found.share, found.by_limit) == (0.5, {"ttft": 1.0})


def test_zero_requests_have_no_share_and_zero_time_no_rate() -> None:
    assert attained([], SloTargets(ttft_ms=1)) == Attainment(0, 0.0, 0.0, {"ttft": 0.0})
    assert attained([request()], SloTargets(ttft_ms=1), duration_s=0).per_s == 0


def test_requests_without_a_class_have_the_default_targets() -> None:
    assert members_of("default", ["", "batch", "default"]).tolist() == [True, False, True]
    assert members_of("batch", ["", "batch", "default"]).tolist() == [False, True, False]


@given(_requests, _targets, st.sampled_from(["ttft_ms", "itl_ms", "e2e_ms"]), st.floats(0, 1))
def test_a_stricter_target_is_never_met_by_more(
    requests: list[dict[str, float]], targets: SloTargets, name: str, factor: float
) -> None:
    stricter = replace(targets, **{name: getattr(targets, name) * max(factor, 1e-6)})
    assert attained(requests, stricter).num_good <= attained(requests, targets).num_good


@given(_requests, _targets, st.sampled_from(["ttft_ms", "itl_ms", "e2e_ms"]))
def test_one_target_fewer_is_met_by_as_many_or_more(
    requests: list[dict[str, float]], targets: SloTargets, name: str
) -> None:
    assert attained(requests, replace(targets, **{name: 0.0})).num_good >= attained(requests, targets).num_good


@given(_requests, _targets)
def test_no_more_are_good_than_meet_each_limit(requests: list[dict[str, float]], targets: SloTargets) -> None:
    found = attained(requests, targets)
    num_answered = sum(bool(each["answered"]) for each in requests)
    assert found.num_good <= num_answered
    assert 0 <= found.share <= 1
    assert all(0 <= each <= 1 for each in found.by_limit.values())
