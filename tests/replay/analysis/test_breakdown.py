"""The parts of a run add up to the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.analysis.breakdown import by_model, by_session, by_slo_class, by_tenant, jain_index
from replay.output.metrics import aggregate
from replay.simulation.simulate import Simulated
from tests.examples import examples
from tests.fakes import request
from tests.replay.labelled_runs import labelled_runs, ran


def test_a_request_that_did_not_end_counts_for_ttft_only() -> None:
    run = ran((0, request("a", output_tokens=90), {"model": "m"}), horizon_us=5_000)
    default = by_slo_class(run.requests)["default"]
    assert (len(default.ttft), len(default.itl), len(default.e2e)) == (1, 0, 0)
    model = by_model(run.requests, 0.005)["m"]
    assert (len(model.ttft), len(model.e2e), model.requests_per_s) == (1, 0, 0)


def test_groups_of_which_nothing_came_are_left_out() -> None:
    run = ran((0, request(input_tokens=10_000), {"slo_class": "batch", "tenant_id": "t", "model": "m"}))
    assert (by_slo_class(run.requests), by_tenant(run.requests), by_model(run.requests, 1)) == ({}, {}, {})


def test_a_run_without_conversations_has_no_section_on_them() -> None:
    assert by_session(ran((0, request("a"), {})).requests) is None


@pytest.mark.parametrize(
    ("shares", "index"),
    [([5], 1.0), ([3, 3, 3], 1.0), ([9, 0, 0], 1 / 3), ([0, 0], 1.0), ([1, 2, 3], 36 / 42)],
)
def test_jains_index_of_known_shares(shares: list[int], index: float) -> None:
    assert jain_index(shares) == pytest.approx(index)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_jains_index_is_at_least_1_of_n_and_at_most_1(shares: list[int]) -> None:
    assert 1 / len(shares) <= jain_index(shares) * (1 + 1e-12)
    assert 0 < jain_index(shares) <= 1 + 1e-12


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.integers(1, 1_000))
def test_jains_index_does_not_depend_on_the_unit(shares: list[int], unit: int) -> None:
    assert jain_index([unit * share for share in shares]) == pytest.approx(jain_index(shares))


@given(labelled_runs())
@settings(max_examples=examples(25), deadline=None)
def test_classes_add_up_to_all_requests(run: Simulated) -> None:
    metrics = aggregate(run)
    classes = by_slo_class(run.requests).values()
    assert sum(len(each.e2e) for each in classes) == metrics["completed_requests"]
    assert sum(len(each.ttft) for each in classes) == sum(each.ttft_us is not None for each in run.requests)
    e2e_sum = sum(float(each.e2e.ascending.sum()) for each in classes)
    assert e2e_sum / 1000 == pytest.approx(metrics["e2e_mean_ms"] * metrics["completed_requests"])


@given(labelled_runs())
@settings(max_examples=examples(25), deadline=None)
def test_tenants_models_and_those_without_add_up_to_all_completed(run: Simulated) -> None:
    completed = [each for each in run.requests if each.is_completed]
    tenants = by_tenant(run.requests).values()
    assert sum(each.num_requests for each in tenants) == sum(bool(each.row.tenant_id) for each in completed)
    assert sum(each.num_tokens for each in tenants) == sum(
        each.planned_output_tokens for each in completed if each.row.tenant_id
    )
    models = by_model(run.requests, 1.0).values()
    assert sum(each.requests_per_s for each in models) == sum(bool(each.row.model) for each in completed)


@given(labelled_runs())
@settings(max_examples=examples(25), deadline=None)
def test_rounds_of_conversations_are_either_first_or_later(run: Simulated) -> None:
    sessions = by_session(run.requests)
    started = [each for each in run.requests if each.row.session_id and each.ttft_us is not None]
    if sessions is None:
        assert not started
    else:
        assert len(sessions.ttft_cold) + len(sessions.ttft_warm) == len(started)
        assert len(sessions.duration) <= sessions.num_sessions == len({each.row.session_id for each in started})
