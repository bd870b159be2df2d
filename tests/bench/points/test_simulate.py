import json
from pathlib import Path
from typing import Any

import pytest

from bench.points.simulate import FIGURES, Job, compute, costs, gpu_hours_per_million_tokens
from bench.points.workers import on_processes
from replay.run_command import RunOptions, run

SETTINGS: dict[str, Any] = {"model": "qwen/qwen3-14b", "num_requests": 10, "rate": 5.0, "output_tokens": 20}


def test_a_point_has_the_figures_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(RunOptions(**SETTINGS, json=True, slo_ttft="default=45ms"))
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


def test_a_point_that_cannot_be_computed_says_why() -> None:
    outcome = compute(Job("", "run", {**SETTINGS, "tp": 3, "hardware": "none"}))
    assert outcome.figures == {}
    assert "none" in outcome.error


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
    assert sorted(on_processes(abs, [-1, 2, -3], num_processes)) == [(-3, 3), (-1, 1), (2, 2)]
