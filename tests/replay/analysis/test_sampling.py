"""The sampling error of percentiles: ranges that hold those of a long run, and narrow ones of many requests."""

from typing import Any

import numpy as np
import pytest

from blis_sim.options import options_from
from blis_sim.options.progress import no_progress
from replay.analysis.sampling import _num_independent, sampled_range
from replay.run_command import RunOptions, simulate_run
from replay.simulation import record as records
from replay.simulation.record import Record, pool_of

FIGURES = ("ttft_p90_ms", "ttft_p99_ms", "itl_p95_ms", "itl_p99_ms", "e2e_p90_ms")
LOAD: dict[str, Any] = {"model": "qwen3-14b", "prompt_tokens": 500, "output_tokens": 40}


def record_of(num_requests: int, seed: int, rate: float) -> Record:
    options = options_from(RunOptions, **LOAD, num_requests=num_requests, seed=seed, rate=rate)
    return simulate_run(options, lambda _: None, no_progress).simulated.requests


def percentile_ms(record: Record, figure: str) -> float:
    latency, percent, _ = figure.split("_")
    columns = {"ttft": record.ttft_us, "e2e": record.e2e_us}
    pool = pool_of(columns[latency]) if latency in columns else record.tokens.gaps()
    return pool.percentile_ms(int(percent.removeprefix("p")))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8.0, 24.0])
def test_nine_of_ten_ranges_hold_the_percentile_of_a_long_run(rate: float) -> None:
    """Fourteen of twenty at least: fewer than that have one chance in a hundred where nine of ten do."""
    longest, runs = record_of(12_000, 999, rate), [record_of(500, seed, rate) for seed in range(20)]
    for figure in FIGURES:
        truth = percentile_ms(longest, figure)
        ranges = [sampled_range(run, figure) for run in runs]
        held = [each for each in ranges if each and each.low_ms <= truth <= (each.high_ms or truth)]
        assert len(held) >= 14, figure


def width(record: Record, figure: str) -> float:
    found = sampled_range(record, figure)
    assert found is not None
    assert found.high_ms is not None
    return found.high_ms - found.low_ms


@pytest.mark.slow
def test_a_range_is_narrow_where_requests_are_many() -> None:
    short, longer = record_of(500, 0, 8.0), record_of(5_000, 0, 8.0)
    for figure in ("ttft_p90_ms", "itl_p95_ms", "e2e_p90_ms"):
        assert width(longer, figure) < width(short, figure) / 2, figure
        assert width(longer, figure) < 0.06 * percentile_ms(longer, figure), figure


def test_a_percentile_of_too_few_requests_has_no_upper_bound() -> None:
    record = record_of(60, 0, 8.0)
    found = sampled_range(record, "ttft_p99_ms")
    assert found is not None
    assert found.high_ms is None
    assert found.low_ms <= percentile_ms(record, "ttft_p99_ms")


def test_gaps_of_one_step_are_not_independent() -> None:
    record = record_of(100, 0, 24.0)
    found = sampled_range(record, "itl_p95_ms")
    assert found is not None
    assert found.num_independent < len(record.tokens.gaps()) / 4


def test_values_in_a_random_order_are_independent_and_values_in_runs_are_not() -> None:
    beyond = np.arange(16_000) % 10 == 0
    ones = np.ones(16_000, np.int64)
    shuffled = np.random.default_rng(1).permutation(beyond)
    assert _num_independent(shuffled, ones) > 8_000
    in_runs = np.repeat(np.random.default_rng(1).permutation(np.arange(160) % 10 == 0), 100)
    assert 60 < _num_independent(in_runs, ones) < 400


def test_gaps_that_are_too_many_to_be_kept_have_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_TIMED_GAPS", 50)
    record = record_of(20, 0, 8.0)
    assert sampled_range(record, "itl_p95_ms") is None
    assert sampled_range(record, "e2e_p90_ms") is not None
