"""The caller by the headers of a request, and the part of it that the engine gets."""

import pytest
from aiohttp.test_utils import make_mocked_request

from blis_sim.engine.request import Request
from mockserve.http.headers import Caller, caller_of
from tests.fakes import request


def caller(**headers: str) -> Caller:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return caller_of(make_mocked_request("POST", "/", headers=named))


def test_a_caller_has_no_properties_by_default() -> None:
    asked = request()
    assert caller() == Caller()
    assert caller().applied_to(asked) is asked


def test_class_tenant_target_and_rank_are_read() -> None:
    found = caller(
        x_gateway_inference_objective="batch",
        x_gateway_inference_fairness_id="alice",
        x_slo_ttft_ms="250",
        X_data_parallel_rank="2",
    )
    assert found == Caller(rank=2, slo_class="batch", tenant="alice", slo_target_us=250_000)
    named = found.applied_to(request())
    assert (named.slo_class, named.tenant, named.slo_target_us) == ("batch", "alice", 250_000)


@pytest.mark.parametrize("target", ["soon", "-1", "1.", ".5", "1.2345", "²", "1000000000"])
def test_a_target_that_is_no_number_is_none(target: str) -> None:
    assert caller(x_slo_ttft_ms=target) == Caller()


def test_a_deadline_in_milliseconds_may_have_a_fraction() -> None:
    assert caller(x_slo_e2e_ms="1500.25").slo_e2e_us == 1_500_250
    assert caller(x_slo_e2e_ms="0.005").slo_e2e_us == 5


@pytest.mark.parametrize(("priority", "expected"), [(0, None), (3, 3)])
def test_a_class_counts_unless_a_priority_is_asked_for(priority: int, expected: int | None) -> None:
    asked: Request = request()._replace(priority=priority)
    assert Caller(slo_class="batch").applied_to(asked).priority == expected
    assert Caller(tenant="alice").applied_to(asked).priority == priority
