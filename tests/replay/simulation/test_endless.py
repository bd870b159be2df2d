"""Runs that would never end are refused instead of begun."""

import pytest

from blis_sim.options import OptionError
from replay.simulation.simulate import check_run_ends
from tests.fakes import config, request

OUTGROWS = request(input_tokens=10, output_tokens=30)


def test_a_request_that_outgrows_the_cache_is_refused_with_blis_scheduling() -> None:
    with pytest.raises(OptionError, match=r"needs 10 \+ 30 tokens, the KV cache holds 36"):
        check_run_ends([config(total_kv_blocks=9)], [OUTGROWS], None)


def test_a_run_that_just_fits_is_run() -> None:
    check_run_ends([config(total_kv_blocks=10)], [OUTGROWS], None)


@pytest.mark.parametrize("settings", [{"engine": "vllm"}, {"max_model_len": 36}])
def test_runs_that_end_by_themselves_are_not_refused(settings: dict[str, int | str]) -> None:
    check_run_ends([config(total_kv_blocks=9, **settings)], [OUTGROWS], None)  # type: ignore[arg-type]


def test_a_horizon_or_a_deadline_ends_the_run() -> None:
    check_run_ends([config(total_kv_blocks=9)], [OUTGROWS], 1_000_000)
    check_run_ends([config(total_kv_blocks=9)], [request(input_tokens=10, output_tokens=30, deadline_us=5)], None)
