import csv
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench.tune_command import TuneOptions, run
from blis_sim.options import BlisError
from tests.bench.no_server import NoServer
from tests.docs.pages import PROJECT

BASE = (
    *("--model", "qwen/qwen3-14b", "--num-requests", "60", "--prompt-tokens", "500", "--prompt-tokens-stdev", "0"),
    *("--output-tokens", "20", "--output-tokens-stdev", "0"),
)


def tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str, list[dict[str, str]]]:
    given: dict[str, Any] = {"simulation": BASE, "processes": 1, "output": str(tmp_path / "tune.csv")}
    code = run(TuneOptions(**(given | options)))
    rows = list(csv.DictReader((tmp_path / "tune.csv").read_text().splitlines()))
    return code, capsys.readouterr().out, rows


@pytest.mark.slow
def test_the_best_settings_stay_within_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, rows = tuned(tmp_path, capsys, vary=("max_num_seqs=2,64",), ttft_p99="200ms")
    assert code == 0
    good = [row for row in rows if row["within_limits"] == "true"]
    assert good
    assert all((float(row["ttft_p99_ms"]) <= 200) == (row["within_limits"] == "true") for row in rows)
    best = max(good, key=lambda row: float(row["responses_per_sec"]))
    assert best["max_num_seqs"] == "64"
    step_times, *lines = out.splitlines()
    assert step_times.startswith("step times of all by fitted: median error TTFT ")
    assert [line.split()[0] for line in lines if line.endswith("best")] == ["64"]
    assert lines[-1].startswith("best: max_num_seqs=64 at rate ")
    assert lines[-1].endswith(f" {float(best['responses_per_sec']):.2f} requests/s")


def test_no_better_rate_within_the_limits_was_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, rows = tuned(tmp_path, capsys, e2e_p99="350ms", tolerance=0.05)
    tried = sorted((float(row["rate"]), row["within_limits"] == "true") for row in rows if row["rate"] != "inf")
    highest_good = max(rate for rate, is_good in tried if is_good)
    lowest_bad = min(rate for rate, is_good in tried if not is_good)
    assert highest_good < lowest_bad <= highest_good / 0.95


def test_limits_that_all_requests_at_once_meet_need_no_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, rows = tuned(tmp_path, capsys, ttft_p99="60000ms")
    assert [row["rate"] for row in rows] == ["inf"]
    assert "best: these settings at rate inf" in out


def test_requests_that_are_all_there_at_once_have_no_figures_of_a_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that is full from the beginning does not grow, least of all by 47 million requests per minute."""
    _, _, rows = tuned(tmp_path, capsys, ttft_p99="20ms", tolerance=0.5)
    at_once, *over_time = rows
    of_load = ("load_arrived_per_s", "is_steady", "overload_queue_growth_per_min", "overload_offered_per_s")
    assert at_once["rate"] == "inf"
    assert [at_once[name] for name in of_load] == [""] * 4
    assert at_once["load_prompt_tokens_mean"] == "500.0"
    assert over_time
    assert all(row["is_steady"] in {"0", "1"} and float(row["load_arrived_per_s"]) > 0 for row in over_time)


def test_a_share_of_requests_may_be_what_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*BASE, "--slo-ttft", "default=100ms")
    _, _, rows = tuned(tmp_path, capsys, simulation=words, min_attainment=0.9, tolerance=0.1)
    assert all((float(row["slo_attainment"]) >= 0.9) == (row["within_limits"] == "true") for row in rows)


@pytest.mark.slow
def test_limits_that_cannot_be_met_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = tuned(tmp_path, capsys, vary=("max_num_seqs=1,2",), ttft_p99="1us", tolerance=0.5)
    assert code == 1
    assert out.count("never within the limits") == 2


def short_of_memory() -> None:
    """Limit the memory to what suffices for a small simulation."""
    resource.setrlimit(resource.RLIMIT_AS, (650_000_000, 650_000_000))


@pytest.mark.slow
def test_settings_that_fail_unexpectedly_keep_no_others_from_being_tried(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blis_sim.cli", "bench", "tune", *BASE[:2], "--vary", "num_requests=20000000,5"]
    command += ["--e2e-p99", "60s", "--processes", "1", "-o", str(tmp_path / "tune.csv")]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=PROJECT, env=one_thread, preexec_fn=short_of_memory, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("best: num_requests=5 at rate inf")
    assert done.stderr.startswith("blis bench tune: num_requests=20000000: unexpected MemoryError ")
    assert done.stderr.count("\n") == 1
    rows = list(csv.DictReader((tmp_path / "tune.csv").read_text().splitlines()))
    assert [(row["completed_requests"], row["error"][:22]) for row in rows] == [
        ("", "unexpected MemoryError"), ("5", "")
    ]  # fmt: skip


@pytest.mark.slow
def test_turning_requests_away_is_not_serving_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = ("--admission-policy", "token-bucket", "--token-bucket-capacity", "1000")
    code, _, rows = tuned(tmp_path, capsys, simulation=(*BASE, *bucket), ttft_p99="500ms")
    assert code == 0
    assert {row["within_limits"] for row in rows if row["rejected_requests"] != "0"} == {"false"}
    assert {row["within_limits"] for row in rows if row["rejected_requests"] == "0"} == {"true"}


@pytest.mark.slow
def test_the_search_is_drawn_and_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    files = {"plot": str(tmp_path / "tune.svg"), "html": str(tmp_path / "tune.html")}
    _, printed, _ = tuned(tmp_path, capsys, ttft_p99="200ms", **files, tolerance=0.5)
    assert (tmp_path / "tune.svg").read_text().startswith("<?xml")
    assert "limit of TTFT p99 200 ms" in (tmp_path / "tune.svg").read_text()
    page = (tmp_path / "tune.html").read_text()
    assert f'<li class="good">{printed.splitlines()[-1]}</li>' in page
    assert page.count("<svg") == 2
    assert "<title>Engine settings for qwen/qwen3-14b</title>" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttft_p99": "500"}, "--ttft-p99 must be a duration such as 40ms or 1s, got '500'"),
        ({}, "--ttft-p99, --itl-p99, --e2e-p99 or --min-attainment must set"),
        ({"ttft_p99": "5ms", "vary": ("rate=1,2",)}, "--rate has no place here: the search changes the rate"),
        ({"ttft_p99": "5ms", "simulation": (*BASE, "--concurrency", "3")}, "--concurrency has no place here"),
        ({"ttft_p99": "5ms", "simulation": (*BASE, "--stages", "1:9s")}, "--stages has no place here"),
        ({"ttft_p99": "5ms", "vary": ("workload_spec=a,b",)}, "blis plan finds how much of a spec"),
        ({"ttft_p99": "5ms", "simulation": ("replay", "t.yaml", "--model", "m")}, "a workload whose rate can be"),
        ({"min_attainment": 0.9}, "--min-attainment needs --goodput"),
        ({"ttft_p99": "5ms", "output": "/no/such/folder/t.csv"}, "--output must be in a folder that exists"),
        ({"ttft_p99": "5ms", "vary": ("max_num_seqs=0",)}, "--max-num-seqs must be at least 1"),
    ],
)
def test_a_search_that_cannot_be_tuned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BlisError, match=message):
        tuned(tmp_path, capsys, **options)


def test_step_times_learned_from_another_deployment_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*BASE, "--latency-model", "fitted", "--tp", "2")
    limits: dict[str, Any] = {"ttft_p99": "1m", "vary": ("max_num_seqs=32,64",)}
    assert run(TuneOptions(simulation=words, processes=1, **limits)) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "blis bench tune: warning: the shipped coefficients were learned for qwen3-14b on H100"
    )


def test_inputs_of_the_simulations_are_not_overwritten(tmp_path: Path) -> None:
    learned = tmp_path / "learned.csv"
    learned.write_text("coefficients")
    words = (*BASE, "--latency-model", "fitted")
    with pytest.raises(BlisError, match=f"--output would write over {learned}, which belongs to what is read"):
        run(TuneOptions(simulation=words, vary=(f"coefficients={learned}",), ttft_p99="5ms", output=str(learned)))
    assert learned.read_text() == "coefficients"


@pytest.mark.slow
def test_trials_are_written_although_standard_output_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", NoServer())
    with pytest.raises(BrokenPipeError):
        tuned(tmp_path, capsys, vary=("max_num_seqs=64",), ttft_p99="200ms")
    assert (tmp_path / "tune.csv").read_text().startswith("max_num_seqs,rate,within_limits,")
