"""The files and the text of a run, through the command line."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from tests.replay.small_traces import row
from traces import SloTargets, TraceHeader, read_header, read_itl, read_trace, write_trace

DEPLOYMENT = shlex.split(
    "--model qwen/qwen3-14b --hardware H100 --tp 1 --engine blis --latency-model blackbox "
    "--alpha-coeffs 0,0,0 --beta-coeffs 1000,0,0 --total-kv-blocks 1000 --max-model-len 16000"
)
ROWS = [
    row(4, 0, output_tokens=2, slo_class="batch", tenant_id="a"),
    row(7, 10_000, slo_class="critical", tenant_id="b"),
    row(9, 20_000, slo_class="critical", tenant_id="b", prefix_group="g", prefix_length=8),
]

Captured = pytest.CaptureFixture[str]


def written(folder: Path, **header: Any) -> str:
    write_trace(folder / "trace.yaml", TraceHeader(**header), ROWS)
    return str(folder / "trace.yaml")


def printed(capsys: Captured, trace: str, *flags: str) -> dict[str, Any]:
    assert run(["replay", trace, *DEPLOYMENT, "--json", *flags]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_the_format_of_blis_has_metrics_as_json_then_sections(tmp_path: Path, capsys: Captured) -> None:
    assert run(["replay", written(tmp_path), *DEPLOYMENT, "--format", "blis"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["=== Simulation Metrics ===", "{", '  "instance_id": "cluster",']
    assert "=== Per-SLO Metrics ===" in lines
    assert lines[-1] == "  Jain Fairness Index: 0.8000"


def test_targets_come_from_the_header_unless_flags_give_any(tmp_path: Path, capsys: Captured) -> None:
    trace = written(tmp_path, goodput_slo_targets={"batch": SloTargets(ttft_ms=100)})
    assert list(printed(capsys, trace)["per_class"]) == ["batch"]
    assert list(printed(capsys, trace, "--slo-e2e", "critical=1ms")["per_class"]) == ["critical"]


def test_goodput_is_in_the_metrics_file_after_the_rows(tmp_path: Path, capsys: Captured) -> None:
    metrics = tmp_path / "metrics.json"
    flags = ("--slo-ttft", "critical=100ms", "--detectors", "threshold", "--metrics-path", str(metrics))
    content = printed(capsys, written(tmp_path), *flags)
    detailed = json.loads(metrics.read_text())
    assert list(detailed)[-5:] == ["requests", "saturation", "goodput_rps", "slo_attainment", "per_class"]
    assert detailed["saturation"] == content["saturation"] == {"threshold": "STABLE"}
    assert detailed["per_class"] == content["per_class"]


def test_the_saturation_report_has_the_verdicts_of_the_run(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "s.yaml").write_text("threshold: {threshold_ms: 1}\nbacklog_drift: {peak_ratio: 2}\n")
    flags = ("--detectors", "all", "--saturation-config", str(tmp_path / "s.yaml"), "--json")
    assert run(["replay", written(tmp_path), *DEPLOYMENT, *flags, "--saturation-report", str(tmp_path / "s.json")]) == 0
    said = capsys.readouterr()
    assert said.err == f"blis replay: {tmp_path}/s.yaml: backlog_drift.peak_ratio has no effect\n"
    report = json.loads((tmp_path / "s.json").read_text())
    assert report["final"]["threshold"] == "OVERLOADED"
    assert '"threshold": "OVERLOADED"' in said.out
    assert len(report["trace"]) == 2 * 3 * len(ROWS)


def test_token_times_are_written_for_each_completed_request(tmp_path: Path, capsys: Captured) -> None:
    printed(capsys, written(tmp_path), "--trace-output", str(tmp_path / "again"), "--record-itl")
    rows = {each.request_id: each for each in read_trace(tmp_path / "again.yaml").rows}
    times = read_itl(tmp_path / "again.itl.csv")
    assert {number: len(each) for number, each in times.items()} == {4: 2, 7: 3, 9: 3}
    for number, each in times.items():
        assert (each[0], each[-1]) == (rows[number].first_chunk_time_us, rows[number].last_chunk_time_us)


def test_a_replayed_trace_replays_to_the_same_figures(tmp_path: Path, capsys: Captured) -> None:
    trace = written(tmp_path, mode="real", goodput_slo_targets={"batch": SloTargets(ttft_ms=100)})
    first = printed(capsys, trace, "--trace-output", str(tmp_path / "again"))
    assert printed(capsys, str(tmp_path / "again.yaml")) == first
    header = read_header(tmp_path / "again.yaml")
    assert (header.mode, header.goodput_slo_targets) == ("replayed", {"batch": SloTargets(ttft_ms=100)})
    rows = read_trace(tmp_path / "again.yaml").rows
    assert [(each.request_id, each.status, each.prefix_length) for each in rows] == [
        (4, "ok", 0),
        (7, "ok", 0),
        (9, "ok", 8),
    ]


def test_a_run_can_be_judged_like_a_replay(tmp_path: Path, capsys: Captured) -> None:
    asked = ("--slo-ttft", "default=10s", "--detectors", "all", "--fitness-weights", "throughput:1,p99_ttft:0.5")
    assert run(["run", *DEPLOYMENT, "--num-requests", "5", "--rate", "9", "--json", *asked]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["slo_attainment"] == 1
    assert list(content["saturation"]) == ["backlog-drift", "composite", "threshold", "queue"]
    assert list(content["breakdown"]["fitness"]) == ["score", "p99_ttft", "throughput"]


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert run(["replay", written(tmp_path), *DEPLOYMENT, "--trace-output", str(tmp_path / "no" / "t")]) == 2
    assert capsys.readouterr().err == (
        f"blis replay: error: --trace-output must be in a folder that exists, got {tmp_path}/no/t.yaml\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("flag", ["--metrics-path", "--results-path", "--itl-output"])
def test_a_full_disk_is_one_line(tmp_path: Path, capsys: Captured, flag: str) -> None:
    flags = [flag, "/dev/full", *(["--record-itl"] if flag == "--itl-output" else [])]
    assert run(["replay", written(tmp_path), *DEPLOYMENT, *flags]) == 2
    assert capsys.readouterr().err == ("blis replay: error: /dev/full: cannot be written, no space left on device\n")
