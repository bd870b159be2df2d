"""The typed result of a run: rates of its steady part, overload, verdicts, and each instance."""

from dataclasses import replace
from typing import Any

import pytest

from blis_sim.engine.request import Request
from blis_sim.options.provenance import Provenance
from replay.analysis.result import ClassAttainment, mean_result, result_of
from replay.analysis.steady import steadiness, steady_state
from replay.output.findings import AnalysisConfig, FinishedRun, analyze, as_json
from replay.output.table import run_report
from replay.simulation.simulate import Simulated
from tests.fakes import request
from tests.replay.labelled_runs import ran
from traces import SloTargets, TraceHeader

NO_TARGETS: dict[str, SloTargets] = {}


def arrivals(gap_us: int, count: int, output_tokens: int) -> list[tuple[int, Request, dict[str, Any]]]:
    """Requests of one prompt token that come at equal gaps."""
    return [(number * gap_us, request(f"r{number}", 1, output_tokens), {}) for number in range(count)]


def at_rate(gap_us: int, count: int = 100, output_tokens: int = 10, **settings: int) -> Simulated:
    """A run of requests that come at equal gaps, with steps of one millisecond and at most one request at a time."""
    return ran(*arrivals(gap_us, count, output_tokens), max_num_seqs=1, **settings)


def test_a_load_within_capacity_is_steady_and_not_overloaded() -> None:
    run = at_rate(20_000)
    steady = steady_state(run.requests)
    assert steadiness(run.requests).overload is None
    assert steady is not None
    assert steady.requests_per_s == pytest.approx(50, rel=0.03)
    assert steady.output_tokens_per_s == pytest.approx(500, rel=0.03)
    assert steady.offered_per_s == pytest.approx(50, rel=0.03)


def test_a_run_in_which_nothing_completes_is_neither_steady_nor_too_short() -> None:
    """No prompt fits into the KV cache: the number of requests in the system is that of a system without service."""
    run = ran(*((number * 20_000, request(f"r{number}", 10_000, 5), {}) for number in range(100)), total_kv_blocks=8)
    assert not run.requests.is_completed.any()
    found = steadiness(run.requests)
    assert (found.is_steady, found.overload, found.is_known) == (None, None, True)
    result = result_of(run, NO_TARGETS)
    assert result.is_steady is None
    findings = analyze(run, AnalysisConfig(judges_queue=True))
    assert "queue" not in findings.labels
    assert as_json(findings)["breakdown"]["is_steady"] is None


def test_twice_the_capacity_is_served_by_half_and_the_queue_grows_by_the_other_half() -> None:
    found = steadiness(at_rate(5_000, count=400).requests).overload
    assert found is not None
    assert found.offered_per_s == pytest.approx(200, rel=0.03)
    assert found.served_per_s == pytest.approx(100, rel=0.03)
    assert found.queue_growth_per_min == pytest.approx(6_000, rel=0.03)


def test_a_handful_of_requests_has_no_steady_part_and_no_overload() -> None:
    run = at_rate(1_000, count=5)
    assert (steady_state(run.requests), steadiness(run.requests).overload) == (None, None)
    assert (steady_state(at_rate(0).requests), steadiness(at_rate(0).requests).overload) == (None, None)


def test_requests_that_wait_at_the_horizon_count_in_the_queue() -> None:
    found = steadiness(ran(*arrivals(5_000, 400, 10), max_num_seqs=1, horizon_us=2_000_000).requests).overload
    assert found is not None
    assert found.queue_growth_per_min == pytest.approx(6_000, rel=0.03)


def test_figures_of_a_result_are_those_of_the_metrics() -> None:
    run = at_rate(12_000, count=30)
    metrics = analyze(run, AnalysisConfig()).metrics
    result = result_of(run, NO_TARGETS)
    for name in ("ttft", "itl", "e2e"):
        for figure in ("mean", "p90", "p95", "p99"):
            assert getattr(getattr(result, name), f"{figure}_ms") == metrics[f"{name}_{figure}_ms"]
    assert (result.requests.completed, result.requests_per_s) == (30, metrics["responses_per_sec"])
    assert result.mean_itl_per_request.p50_ms == pytest.approx(1.0, abs=0.01)
    assert result.instances == ()


@pytest.mark.parametrize(("attainment", "count", "is_met"), [(0.99, 100, True), (0.98, 100, False), (0.0, 0, True)])
def test_targets_are_met_by_the_share_that_is_needed(attainment: float, count: int, is_met: bool) -> None:
    verdict = ClassAttainment(
        slo_class="default",
        targets=SloTargets(ttft_ms=1),
        count=count,
        attainment=attainment,
        attainment_by_target={},
        least_attainment=0.99,
    )
    assert verdict.is_met is is_met


def test_the_mean_of_results_is_that_of_each_figure_and_keeps_words() -> None:
    first = result_of(at_rate(12_000, count=30), NO_TARGETS)
    other = replace(first, duration_s=first.duration_s + 1, output_tokens=first.output_tokens + 4)
    mean = mean_result([first, other])
    assert mean.duration_s == pytest.approx(first.duration_s + 0.5)
    assert mean.output_tokens == first.output_tokens + 2
    assert mean.ttft == first.ttft
    assert mean.overload is None


def test_the_table_has_units_percentiles_verdict_and_overload() -> None:
    run, targets = at_rate(5_000, count=400), {"default": SloTargets(ttft_ms=20, e2e_ms=30)}
    found = analyze(run, AnalysisConfig(targets=targets))
    result = result_of(run, targets, found.goodput)
    origin = Provenance(command="blis run", model="m")
    outcome = FinishedRun(AnalysisConfig(targets=targets), run, TraceHeader(), "m", lambda: origin)
    report = run_report(outcome, found, lambda: result)
    text = report.text("table")
    assert "latency, ms" in text
    assert "p50" in text
    assert "overloaded: served 100 of 201 requests/s, the queue grows by 6,002/min" in text
    assert "TTFT 20 ms, E2E 30 ms" in text
    assert "MISSED, 99% needed" in text
    assert "mean ITL per request" in text
    assert "| TTFT |" in report.text("markdown")
    titles, *rows = (line.split(",") for line in report.text("csv").splitlines())
    assert (len(rows), dict(zip(titles, rows[0], strict=True))["completed"]) == (1, "400")


def test_a_queue_that_grows_by_less_than_chance_is_no_overload() -> None:
    assert steadiness(at_rate(9_990, count=200).requests).overload is None
