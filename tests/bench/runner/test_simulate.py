import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench.points import FIGURES, Job, compute, costs, gpu_hours_per_million_tokens
from blis_sim.bench.workers import run_on_processes
from blis_sim.options import BlisError, options_from
from replay.run_command import RunOptions, run

SETTINGS: dict[str, Any] = {"model": "qwen/qwen3-14b", "num_requests": 10, "rate": 5.0, "output_tokens": 20}


def test_a_point_has_the_figures_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(options_from(RunOptions, **SETTINGS, json=True, slo_ttft="default=45ms"))
    printed = json.loads(capsys.readouterr().out)
    figures = compute(Job("", "run", {**SETTINGS, "slo_ttft": "default=45ms"})).figures
    assert list(figures) == list(FIGURES)
    for name in ("completed_requests", "tokens_per_sec", "ttft_p99_ms", "itl_mean_ms", "goodput_rps"):
        assert figures[name] == printed[name]
    assert capsys.readouterr() == ("", "")


def test_where_no_request_meets_its_targets_attainment_is_zero_and_without_targets_unknown() -> None:
    missed = compute(Job("", "run", {**SETTINGS, "slo_ttft": "default=1us"})).figures
    assert (missed["slo_attainment"], missed["goodput_rps"]) == (0, 0)
    assert compute(Job("", "run", SETTINGS)).figures["slo_attainment"] is None


def test_a_point_that_cannot_be_computed_has_its_error() -> None:
    outcome = compute(Job("", "run", {**SETTINGS, "tp": 3, "hardware": "none"}))
    assert outcome.figures == {}
    assert "none" in outcome.error


def test_an_unexpected_error_of_a_point_is_one_line() -> None:
    outcome = compute(Job("", "run", {**SETTINGS, "num_requests": "ten"}))
    assert outcome.figures == {}
    assert outcome.is_unexpected
    assert outcome.error.startswith("unexpected TypeError ")
    assert not compute(Job("", "run", {**SETTINGS, "tp": 0})).is_unexpected


def test_a_replay_is_a_point_too(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("trace_version: 3\n")
    (tmp_path / "t.csv").write_text("request_id,input_tokens,output_tokens,arrival_time_us\n0,5,2,0\n")
    outcome = compute(Job("", "replay", {"model": "qwen/qwen3-14b", "trace": str(tmp_path / "t.yaml")}))
    assert outcome.figures["completed_requests"] == 1


def test_gpus_cost_by_the_hour() -> None:
    figures = compute(Job("", "run", {**SETTINGS, "tp": 2})).figures
    tokens_per_s = figures["tokens_per_sec"]
    assert tokens_per_s is not None
    assert figures["num_gpus"] == 2
    assert figures["gpu_hours_per_million_tokens"] == pytest.approx(2e6 / tokens_per_s / 3600)
    priced = costs(figures, 3.0)
    assert priced["cost_per_hour"] == 6
    assert priced["cost_per_million_tokens"] == pytest.approx(6e6 / tokens_per_s / 3600)
    assert compute(Job("", "run", {**SETTINGS, "tp": 2, "num_instances": 3})).figures["num_gpus"] == 6
    assert gpu_hours_per_million_tokens(1, 0) is None
    assert costs({}, 3.0) == {"cost_per_hour": None, "cost_per_million_tokens": None}


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_job_is_done_once(num_processes: int) -> None:
    assert sorted(run_on_processes(abs, [-1, 2, -3], num_processes)) == [(-3, 3), (-1, 1), (2, 2)]


def test_rejected_requests_are_counted() -> None:
    closed = {**SETTINGS, "num_instances": 2, "admission_policy": "token-bucket", "token_bucket_capacity": 2000.0}
    figures = compute(Job("", "run", closed)).figures
    completed, rejected = figures["completed_requests"], figures["rejected_requests"]
    assert completed
    assert rejected
    assert completed + rejected == 10
    queued = {**SETTINGS, "rate": 1e6, "flow_control": True, "saturation_detector": "concurrency"}
    queued |= {"max_concurrency": 1, "max_gateway_queue_depth": 3}
    figures = compute(Job("", "run", queued)).figures
    assert figures["completed_requests"] == 10 - (figures["rejected_requests"] or 0) < 10


@pytest.mark.parametrize(
    ("settings", "policies", "num_gpus"),
    [
        ({"num_instances": 3, "tp": 2}, "", 6),
        (
            {"num_instances": 3, "prefill_instances": 1, "decode_instances": 2, "pd_decider": "always", "decode_tp": 4},
            "",
            9,
        ),
        ({}, "instances: [{count: 2}, {tp: 2}]", 4),
        ({"num_instances": 3}, "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 2, initial_nodes: 1}]", 2),
    ],
)
def test_gpus_are_those_of_the_instances_as_they_are(
    settings: dict[str, Any], policies: str, num_gpus: int, tmp_path: Path
) -> None:
    if policies:
        (tmp_path / "p.yaml").write_text(policies)
        settings = {**settings, "policy_config": str(tmp_path / "p.yaml")}
    assert compute(Job("", "run", {**SETTINGS, **settings})).figures["num_gpus"] == num_gpus


def end_at_once(_: int) -> int:
    os._exit(9)


@pytest.mark.slow
def test_a_killed_process_is_reported_in_one_line() -> None:
    with pytest.raises(BlisError, match="one of the processes that compute was killed"):
        list(run_on_processes(end_at_once, [1, 2], 2))


def test_ending_the_results_early_waits_only_for_points_that_have_begun() -> None:
    results = run_on_processes(abs, range(3000), 2)
    next(results)
    results.close()
    assert multiprocessing.active_children() == []
