"""Readings of simulated servers against their prediction."""

import json
from dataclasses import replace

import numpy as np
import pytest

from blis_sim.bench.drift import (
    FORMER_ITL,
    ITL,
    PROMPTS,
    RUNNING,
    SUCCESS,
    Comparison,
    Histogram,
    PageSource,
    Reading,
    compare_with_prediction,
    lengths_of,
    num_arrived,
    reading_of,
    since_restart,
)
from blis_sim.bench.watch_options import WatchOptions
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import BlisError, OptionError, options_from
from blis_sim.options.printing import CSV, JSON
from blis_sim.report.tables import flat, streamed
from tests.bench.simulated_readings import readings_of, samples_of


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1))


def comparison(readings: list[Reading], deployment: Deployment) -> Comparison:
    return compare_with_prediction(readings, deployment, None, window_s=40.0, num_draws=12, tolerance=0.01)


def test_a_server_that_does_what_is_predicted_stays_within_the_intervals(deployment: Deployment) -> None:
    found = comparison(readings_of(deployment, rate=6, seconds=45, every_s=2), deployment)
    assert [each.name for each in found.figures] == ["TTFT", "E2E", "ITL"]
    assert not found.drifted, list(found.lines)
    assert all(each.interval.high_s / each.interval.low_s < 1.35 for each in found.figures), list(found.lines)


def test_steps_that_take_a_fifth_longer_leave_the_intervals(deployment: Deployment) -> None:
    found = comparison(readings_of(deployment, rate=6, seconds=45, every_s=2, factor=1.2), deployment)
    assert {"E2E", "ITL"} <= {each.name for each in found.drifted}
    assert any(line.startswith("DRIFT: ITL is +") for line in found.lines)


def test_coefficients_that_were_learned_elsewhere_make_wide_intervals() -> None:
    other = resolve(DeploymentOptions(model="llama-3.1-8b", hardware="A100-SXM", tp=1, latency_model="fitted"))
    found = comparison(readings_of(other, rate=6, seconds=45, every_s=2), other)
    assert [each.name for each in found.figures] == ["TTFT", "E2E", "ITL"]
    assert all(each.interval.high_s / max(1e-3, each.interval.low_s) > 2 for each in found.figures), list(found.lines)


def test_few_requests_are_not_judged(deployment: Deployment) -> None:
    found = comparison(readings_of(deployment, rate=0.2, seconds=20, every_s=2), deployment)
    assert not found.figures
    assert found.reason.startswith("too few requests to compare")


def test_readings_before_a_restart_are_forgotten(deployment: Deployment) -> None:
    before, after = (readings_of(deployment, rate=6, seconds=10, every_s=2, seed=seed) for seed in (1, 2))
    assert since_restart([*before, *after]) == after
    assert since_restart(after) == after


def test_arrivals_are_the_requests_that_ended_and_those_more_in_flight(deployment: Deployment) -> None:
    readings = readings_of(deployment, rate=6, seconds=20, every_s=2)
    last = readings[-1]
    assert sum(num_arrived(readings)) == last.values[SUCCESS] + last.values[RUNNING] - readings[0].in_flight


def test_lengths_have_the_observed_mean_and_equal_ones_no_spread(deployment: Deployment) -> None:
    readings = readings_of(deployment, rate=6, seconds=40, every_s=2)
    observed = readings[-1].histograms[PROMPTS]
    drawn = lengths_of(readings, PROMPTS).drawn(2000, np.random.default_rng(1))
    assert abs(drawn.mean() / (observed.total / observed.count) - 1) < 0.01
    assert drawn.std() > 100
    equal = [replace(each, histograms={**each.histograms, PROMPTS: _all_of(700, each)}) for each in readings]
    assert set(lengths_of(equal, PROMPTS).drawn(50, np.random.default_rng(1)).tolist()) == {700}


def _all_of(tokens: int, reading: Reading) -> Histogram:
    ended = reading.values[SUCCESS]
    return replace(reading.histograms[PROMPTS], total=tokens * ended, count=ended, buckets={500: 0.0, 1000: ended})


def test_the_former_name_of_itl_is_read(deployment: Deployment) -> None:
    reading = readings_of(deployment, rate=6, seconds=10, every_s=5)[-1]
    renamed = [(name.replace(ITL, FORMER_ITL), labels, value) for name, labels, value in samples_of(reading)]
    assert reading_of(0.0, renamed).histograms[ITL] == reading.histograms[ITL]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "ftp://a?token=x"}, "--url must be an http or https URL .*, got 'ftp://a'$"),
        ({"url": "http://a/metrics", "selector": 'job="x"'}, "--selector needs the URL of a Prometheus"),
        ({"url": "http://a", "watch_window": 8.0}, "--scrape-interval must be at most half of --watch-window, 8 s"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        options_from(WatchOptions, **settings)


def test_a_page_of_no_metrics_is_named_without_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_sim.bench.drift.read_url", lambda url, api_key: b"none")
    with pytest.raises(BlisError, match=r"^cannot use http://a/metrics: "):
        PageSource("http://a/metrics?token=x", None, 1.0, 60.0).poll()


def test_a_comparison_is_a_row_whose_columns_do_not_depend_on_what_is_known(deployment: Deployment) -> None:
    found = comparison(readings_of(deployment, rate=6, seconds=45, every_s=2), deployment)
    row, nothing = flat(found.as_json), flat(Comparison(1.0, reason="too few readings to compare").as_json)
    assert list(row) == list(nothing)
    assert row["figures_ttft_low_ms"] <= row["figures_ttft_measured_ms"] <= row["figures_ttft_high_ms"]
    assert (row["figures_ttft_has_drifted"], nothing["figures_ttft_has_drifted"]) == (False, None)
    first, second = (streamed(CSV, found.as_json, [row], is_first) for is_first in (True, False))
    assert first.endswith(f"\n{second}")
    assert json.loads(streamed(JSON, found.as_json, [row], True))["num_requests"] == found.num_requests
