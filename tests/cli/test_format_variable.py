"""The format of standard output that the environment sets, and tables that go into a pipe."""

import json
import os
import sys
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.options.provenance import Provenance
from observe.figures import as_blis, load_report

SMALL = ["run", "--model", "qwen/qwen3-14b", "--num-requests", "5"]
FIRST = "=== Simulation Metrics ===\n"
Captured = pytest.CaptureFixture[str]


def printed(arguments: list[str], capsys: Captured) -> tuple[str, str]:
    """Standard output and error of a command."""
    assert run(arguments) == 0
    written = capsys.readouterr()
    return written.out, written.err


def test_scripts_for_blis_get_what_blis_prints_and_its_figures(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, _ = printed([*SMALL, "--format", "blis", "--engine", "blis"], capsys)
    monkeypatch.setenv("BLIS_FORMAT", "blis")
    ours, said = printed(SMALL, capsys)
    assert ours == theirs
    assert ours.startswith(FIRST)
    assert "blis run: --format blis --engine blis, as BLIS_FORMAT says (flags win over these)\n" in said


@pytest.mark.parametrize(
    ("form", "flags", "begins"),
    [
        ("blis", ["--engine", "vllm"], FIRST),
        ("blis", ["--format", "table"], "qwen/qwen3-14b on 1 x H100, blis engine"),
        ("blis", ["--json"], "{"),
        ("json", [], "{"),
        ("json", ["--format", "blis"], FIRST),
        ("", [], "qwen/qwen3-14b on 1 x H100, vllm engine"),
    ],
)
def test_flags_win_over_the_environment(
    form: str, flags: list[str], begins: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLIS_FORMAT", form)
    assert printed([*SMALL, *flags], capsys)[0].startswith(begins)


def test_an_engine_that_is_named_is_kept(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    named, _ = printed([*SMALL, "--format", "blis"], capsys)
    monkeypatch.setenv("BLIS_FORMAT", "blis")
    assert printed([*SMALL, "--engine", "vllm"], capsys)[0] == named


def test_a_format_that_does_not_exist_is_refused(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_FORMAT", "xml")
    assert run(SMALL) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "blis run: error: BLIS_FORMAT must be one of table, json, report, csv, markdown, html, blis, got 'xml'\n"
    )


def test_commands_without_blis_own_format_are_as_ever(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_FORMAT", "blis")
    assert "blis engine" not in printed(["models", "qwen/qwen3-14b"], capsys)[0]


def test_a_table_in_a_pipe_is_named_and_json_is_not(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        codes = [run([*SMALL, *more]) for more in ([], ["--json"], ["--format", "csv"])]
        pipe.close()
        assert reader.read().startswith("qwen/qwen3-14b on 1 x H100")
    assert codes == [0, 0, 0]
    assert capsys.readouterr().err.count("standard output is a pipe and gets a table for people") == 1


def test_from_error_on_there_are_no_notes(capsys: Captured) -> None:
    noted = [*SMALL, "--routing-policy", "least-loaded"]
    assert "blis run: --routing-policy least-loaded has no effect with one instance\n" in printed(noted, capsys)[1]
    assert printed([*noted, "--log", "error"], capsys)[1] == ""
    assert run([*noted, "--log", "error", "--max-num-seqs", "0"]) == 2
    assert "blis run: error: --max-num-seqs must be at least 1" in capsys.readouterr().err
    assert run([*noted, "--log", "loud"]) == 2


def test_a_table_in_a_file_is_not_named(capsys: Captured) -> None:
    assert "is a pipe" not in printed(SMALL, capsys)[1]


FIGURES: dict[str, Any] = {
    "completed": 3,
    "request_throughput_per_s": 1.5,
    "output_throughput_tokens_per_s": 30.0,
    "ttft_ms": {"mean": 2.0, "p50": 2.0, "p90": 3.0, "p95": 3.5, "p99": 4.0, "max": 5.0},
    "e2e_ms": {"mean": 20.0, "p50": 20.0, "p90": 30.0, "p95": 35.0, "p99": 40.0, "max": 50.0},
    "itl_ms": None,
    "send_lag_ms": None,
    "tpot_ms": None,
    "concurrency_wait_ms": None,
    "goodput_rps": 1.0,
    "slo_attainment": 0.5,
    "per_class": {},
}


def test_a_recording_has_the_metrics_that_blis_prints_in_its_order() -> None:
    found = as_blis(FIGURES)
    assert list(found)[:8] == [
        "instance_id",
        "completed_requests",
        "still_queued",
        "still_running",
        "injected_requests",
        "total_input_tokens",
        "total_output_tokens",
        "vllm_estimated_duration_s",
    ]
    assert (found["completed_requests"], found["responses_per_sec"], found["tokens_per_sec"]) == (3, 1.5, 30.0)
    assert [found[f"ttft_{figure}_ms"] for figure in ("mean", "p90", "p95", "p99")] == [2.0, 3.0, 3.5, 4.0]
    assert (found["itl_mean_ms"], found["slo_attainment"]) == (0, 0.5)


def test_a_recording_prints_json_or_what_blis_prints() -> None:
    report = load_report(FIGURES, lambda: Provenance(command="blis observe"))
    assert json.loads(report.text("json")) == FIGURES
    text = report.text("blis")
    assert text.startswith(FIRST)
    assert json.loads(text.removeprefix(FIRST)) == as_blis(FIGURES)
