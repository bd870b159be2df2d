"""`blis replay`, with a latency model that can be worked out by hand: 1 ms a step and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from tests import coefficients_file, fork_server
from tests.capped import capped_rows
from tests.patience import PATIENCE_S
from tests.replay.small_traces import row, written
from traces import TraceRow, read_results, read_trace

PROJECT = Path(__file__).resolve().parents[2]
MODEL = "qwen/qwen3-14b"
SHIPPED = str(LEARNED_COEFFICIENTS)
DEPLOYMENT = (
    *("--model", MODEL, "--hardware", "H100", "--tp", "1", "--engine", "blis"),
    *("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "1000,0,0"),
    *("--total-kv-blocks", "1000", "--max-model-len", "16000"),
)
THREE = [row(0, 0, output_tokens=2), row(1, 10_000), row(2, 20_000)]

Captured = pytest.CaptureFixture[str]


def replayed(header: Path, capsys: Captured, *flags: str) -> tuple[dict[str, Any], str]:
    """The metrics printed, without their breakdown, and what was said beside them."""
    assert run(["replay", str(header), *DEPLOYMENT, "--json", *flags]) == 0
    said = capsys.readouterr()
    metrics: dict[str, Any] = json.loads(said.out)
    del metrics["breakdown"]
    return metrics, said.err


def refused(capsys: Captured, *arguments: str) -> str:
    """The one line with which bad input is refused."""
    assert run(["replay", *arguments, *DEPLOYMENT]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err.removeprefix("blis replay: error: ").strip()


def test_the_metrics_are_printed_and_nothing_else_is_said(tmp_path: Path, capsys: Captured) -> None:
    metrics, notes = replayed(written(tmp_path, THREE), capsys)
    assert (metrics["completed_requests"], metrics["total_output_tokens"]) == (3, 8)
    assert metrics["vllm_estimated_duration_s"] == 0.023
    assert (metrics["ttft_mean_ms"], metrics["itl_p99_ms"]) == (1, 1)
    assert notes == ""


def test_no_file_is_written_unless_asked_for(tmp_path: Path, capsys: Captured) -> None:
    replayed(written(tmp_path, THREE), capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.csv", "trace.yaml"]


@pytest.mark.parametrize(("flag", "file"), [("--results-path", "trace.csv"), ("--trace-output", "trace")])
def test_a_trace_is_never_written_over(tmp_path: Path, capsys: Captured, flag: str, file: str) -> None:
    header = written(tmp_path, THREE)
    before = [header.read_bytes(), header.with_suffix(".csv").read_bytes()]
    assert refused(capsys, str(header), flag, str(tmp_path / file)).startswith(f"{flag} would write over {tmp_path}")
    assert [header.read_bytes(), header.with_suffix(".csv").read_bytes()] == before


def test_results_per_request_are_written_where_asked(tmp_path: Path, capsys: Captured) -> None:
    replayed(written(tmp_path, THREE), capsys, "--results-path", str(tmp_path / "results.json"))
    results = read_results(tmp_path / "results.json")
    assert [(each.request_id, each.ttft_us, each.e2e_us) for each in results] == [
        (0, 1_000, 2_000),
        (1, 1_000, 3_000),
        (2, 1_000, 3_000),
    ]


def test_the_metrics_file_holds_what_is_printed_and_a_row_per_request(tmp_path: Path, capsys: Captured) -> None:
    printed, _ = replayed(written(tmp_path, THREE), capsys, "--metrics-path", str(tmp_path / "metrics.json"))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert [each["requestID"] for each in metrics.pop("requests")] == ["request_0", "request_1", "request_2"]
    assert metrics.pop("cache_hit_rate") == 0
    assert metrics == printed


def test_the_horizon_stops_the_clock(tmp_path: Path, capsys: Captured) -> None:
    metrics, _ = replayed(written(tmp_path, THREE), capsys, "--horizon", "11500")
    assert metrics["completed_requests"] == 1
    assert (metrics["still_running"], metrics["injected_requests"]) == (1, 2)
    assert metrics["vllm_estimated_duration_s"] == 0.011


def test_the_header_may_be_given_by_flag(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    assert run(["replay", "--trace-header", str(header), *DEPLOYMENT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed_requests"] == 3


def test_the_rows_may_lie_elsewhere(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    rows = (tmp_path / "trace.csv").rename(tmp_path / "elsewhere.csv")
    metrics, _ = replayed(header, capsys, "--trace-data", str(rows))
    assert metrics["completed_requests"] == 3


def test_failed_rows_are_left_out_with_a_note_unless_included(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [*THREE, row(3, 30_000, status="error")], mode="real")
    metrics, notes = replayed(header, capsys)
    assert metrics["completed_requests"] == 3
    assert notes == "blis replay: left out 1 rows that failed (--include-failed replays them)\n"
    metrics, notes = replayed(header, capsys, "--include-failed")
    assert (metrics["completed_requests"], notes) == (4, "")


def test_rows_of_another_model_are_left_out_with_a_note(tmp_path: Path, capsys: Captured) -> None:
    metrics, notes = replayed(written(tmp_path, [*THREE, row(3, model="other")]), capsys)
    assert metrics["completed_requests"] == 3
    assert notes == f"blis replay: left out 1 rows recorded for another model than {MODEL}\n"


def test_assumptions_on_the_deployment_are_noted(tmp_path: Path, capsys: Captured) -> None:
    _, notes = replayed(written(tmp_path, THREE), capsys, "--max-model-len", "17000")
    assert notes.startswith("blis replay: --max-model-len, 17000 tokens, is cut to ")


def test_the_scheduling_may_be_vllms(tmp_path: Path, capsys: Captured) -> None:
    metrics, _ = replayed(written(tmp_path, THREE), capsys, "--engine", "vllm")
    assert (metrics["completed_requests"], metrics["ttft_mean_ms"]) == (3, 1)


def test_a_trace_without_rows_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert refused(capsys, str(written(tmp_path, []))).endswith("trace.csv has no rows, so there is nothing to replay")


@pytest.mark.parametrize(
    ("rows", "mode"), [([row(model="other")], "generated"), ([row(status="timeout")], "real")], ids=["model", "failed"]
)
def test_a_trace_of_which_nothing_remains_is_refused(
    tmp_path: Path, capsys: Captured, rows: list[TraceRow], mode: str
) -> None:
    assert run(["replay", str(written(tmp_path, rows, mode)), *DEPLOYMENT]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].endswith("trace.csv can be replayed: all were left out")


def test_a_missing_header_is_named(tmp_path: Path, capsys: Captured) -> None:
    assert refused(capsys, str(tmp_path / "absent.yaml")) == f"{tmp_path}/absent.yaml: no such file"


def test_a_header_without_its_rows_is_refused_with_the_names_tried(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    (tmp_path / "trace.csv").unlink()
    said = refused(capsys, str(header))
    assert str(header) in said
    assert "trace.csv" in said


def test_a_missing_data_file_is_named(tmp_path: Path, capsys: Captured) -> None:
    said = refused(capsys, str(written(tmp_path, THREE)), "--trace-data", str(tmp_path / "absent.csv"))
    assert said == f"{tmp_path}/absent.csv: no such file"


def test_a_bad_cell_is_named_by_line_and_column(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    rows = tmp_path / "trace.csv"
    rows.write_text(rows.read_text().replace(",10000,", ",soon,"))
    said = refused(capsys, str(header))
    assert "trace.csv line 3 column arrival_time_us: expected a whole number between -" in said
    assert said.rstrip().endswith(", got 'soon'")


@pytest.mark.parametrize("flag", ["--results-path", "--metrics-path"])
@pytest.mark.parametrize("path", ["absent/out.json", "."])
def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Captured, flag: str, path: str) -> None:
    said = refused(capsys, str(written(tmp_path, THREE)), flag, str(tmp_path / path))
    assert str(tmp_path / path) in said


def test_no_trace_is_refused_with_an_example(capsys: Captured) -> None:
    assert refused(capsys) == "give the trace's header file once, as in `blis replay trace.yaml`"


def test_two_traces_are_refused(tmp_path: Path, capsys: Captured) -> None:
    header = str(written(tmp_path, THREE))
    assert "once" in refused(capsys, header, "--trace-header", header)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--horizon", "0"], "--horizon must be above 0, got 0"),
        (["--model", "no/such-model"], "no/such-model"),
        (["--hardware", "H9"], "H9"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(tmp_path: Path, capsys: Captured, flags: list[str], said: str) -> None:
    assert run(["replay", str(written(tmp_path, THREE)), *DEPLOYMENT, *flags]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def test_on_a_terminal_a_progress_bar_leaves_stdout_alone(tmp_path: Path) -> None:
    terminal, stderr = os.openpty()
    command = [sys.executable, "-m", "blis_sim.cli", "replay", str(written(tmp_path, THREE)), "--json", *DEPLOYMENT]
    try:
        process = fork_server.run(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True, timeout=PATIENCE_S
        )
        shown = os.read(terminal, 10_000).decode()
    finally:
        os.close(stderr)
        os.close(terminal)
    assert json.loads(process.stdout)["completed_requests"] == 3
    assert "replaying" in shown


def test_a_process_prints_json_on_stdout_and_notes_on_stderr(tmp_path: Path) -> None:
    header = written(tmp_path, [*THREE, row(3, model="other")])
    command = [sys.executable, "-W", "error", "-m", "blis_sim.cli", "replay", str(header), "--json", *DEPLOYMENT]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["completed_requests"] == 3
    assert process.stderr.count("\n") == 1


def test_a_reissued_trace_is_sent_by_schedule_and_cap(tmp_path: Path, capsys: Captured) -> None:
    late = [row(0, 0, send_time_us=100), row(1, 0, send_time_us=40_000), row(2, 0, send_time_us=90_000)]
    header = written(tmp_path, late)
    as_sent, _ = replayed(header, capsys)
    reissued, _ = replayed(header, capsys, "--reissue", "--max-concurrency", "1")
    assert as_sent["vllm_estimated_duration_s"] == 0.0929
    assert reissued["vllm_estimated_duration_s"] == 0.009002


def test_results_hold_the_times_of_sending_if_the_run_decided_it(tmp_path: Path, capsys: Captured) -> None:
    header, results = written(tmp_path, [row(0, 0), row(1, 0)]), tmp_path / "results.json"
    flags = ("--results-path", str(results))
    replayed(header, capsys, *flags)
    assert [each.sent_at_us for each in read_results(results)] == [None, None]
    replayed(header, capsys, *flags, "--reissue", "--max-concurrency", "1")
    assert [each.sent_at_us for each in read_results(results)] == [0, 3_001]
    replayed(header, capsys, *flags, "--session-mode", "closed-loop")
    assert [each.sent_at_us for each in read_results(results)] == [0, 0]


def test_the_trace_of_a_reissued_run_keeps_the_schedule(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [row(number, 500 * number, output_tokens=4) for number in range(12)])
    cap = ("--reissue", "--max-concurrency", "2")
    (tmp_path / "again").mkdir()
    first, _ = replayed(header, capsys, *cap, "--trace-output", str(tmp_path / "again" / "trace"))
    rows = read_trace(tmp_path / "again" / "trace.yaml").rows
    assert [each.arrival_time_us for each in rows] == [500 * number for number in range(12)]
    assert rows[-1].send_time_us > 12_000
    for flags in ((), cap):
        assert replayed(tmp_path / "again" / "trace.yaml", capsys, *flags)[0] == first


@pytest.mark.parametrize("flags", [(), ("--reissue",)])
def test_a_cap_that_shows_in_a_recording_and_is_not_given_is_named(
    tmp_path: Path, capsys: Captured, flags: tuple[str, ...]
) -> None:
    _, said = replayed(written(tmp_path, capped_rows(40, cap=4), "real"), capsys, *flags)
    (warning,) = [line for line in said.splitlines() if "cap" in line]
    assert warning.startswith(
        "blis replay: warning: 36 of 40 requests were sent late (up to 0.5 s), when 4 were in flight"
    )
    assert warning.endswith("; --reissue --max-concurrency 4 sends as it did")


@pytest.mark.parametrize("flags", [("--reissue", "--max-concurrency", "9"), ("--session-mode", "closed-loop")])
def test_a_cap_is_not_noted_when_other_rules_for_sending_are_given(
    tmp_path: Path, capsys: Captured, flags: tuple[str, ...]
) -> None:
    assert "cap" not in replayed(written(tmp_path, capped_rows(40, cap=4), "real"), capsys, *flags)[1]


def test_a_cap_without_reissue_is_refused(tmp_path: Path, capsys: Captured) -> None:
    message = refused(capsys, str(written(tmp_path, THREE)), "--max-concurrency", "5")
    assert message.startswith("--max-concurrency needs --reissue, for recorded send times are under their cap already")


def test_a_phase_average_is_reproducible_and_close_to_the_single_run(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    averaged, _ = replayed(header, capsys, "--phase-average", "3")
    again, _ = replayed(header, capsys, "--phase-average", "3")
    over_two, _ = replayed(header, capsys, "--phase-average", "2")
    assert averaged == again != over_two
    assert averaged["completed_requests"] == 3
    assert averaged["ttft_mean_ms"] == pytest.approx(1, rel=0.02)


def fitted_flags(folder: Path, **sections: Any) -> list[str]:
    file = coefficients_file.written(folder, **sections)
    flags = ["--model", MODEL, "--hardware", "H100", "--tp", "1", "--engine", "vllm"]
    return [*flags, "--latency-model", "fitted", "--coefficients", str(file), "--json"]


def test_learned_coefficients_time_a_replay(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [row(0, 0, input_tokens=1000, output_tokens=1)])
    assert run(["replay", str(header), *fitted_flags(tmp_path)]) == 0
    said = capsys.readouterr()
    step_us = (0.5 * 1000 + 1.0 * 1024) * 26.7045 + 2.0 * 500_000 * 0.00082789 + 20.5 + 1500
    step_us += 0.02 * 25_000  # the longest burst that counts
    assert json.loads(said.out)["ttft_mean_ms"] == pytest.approx((4500 + step_us + 940) / 1000, abs=0.002)
    assert said.err == ""


def test_batches_beyond_those_learned_from_are_warned_of(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [row(number, 0) for number in range(40)])
    assert run(["replay", str(header), *fitted_flags(tmp_path)]) == 0
    assert "blis replay: warning: outside the range of --coefficients: up to 40 decoding requests in a step, " in (
        capsys.readouterr().err
    )


def test_coefficients_of_another_deployment_are_warned_of(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [row(0, 0)])
    learned_for = {"model": "qwen3-8b", "hardware": "A100-SXM", "tp": 1}
    assert run(["replay", str(header), *fitted_flags(tmp_path, learned_for=learned_for)]) == 0
    said = capsys.readouterr().err
    assert said == (
        f"blis replay: warning: {tmp_path}/coefficients.yaml was learned for qwen3-8b on A100-SXM with tp 1, "
        "not for qwen3-14b on H100 with tp 1\n"
    )


def test_coefficients_that_ship_time_a_replay_as_the_same_in_a_file_do(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, [row(number, number * 20_000, input_tokens=1000) for number in range(9)])
    flags = [
        "--model",
        MODEL,
        "--latency-model",
        "fitted",
        "--max-num-batched-tokens",
        "2048",
        "--json",
        "--results-path",
    ]
    assert run(["replay", str(header), *flags, str(tmp_path / "shipped.json")]) == 0
    by_shipped = capsys.readouterr()
    assert run(["replay", str(header), *flags, str(tmp_path / "named.json"), "--coefficients", SHIPPED]) == 0
    assert capsys.readouterr() == by_shipped
    assert by_shipped.err == ""
    assert (tmp_path / "shipped.json").read_bytes() == (tmp_path / "named.json").read_bytes()


def test_a_file_of_coefficients_wins_over_those_that_ship(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    found = set()
    for more in ([], ["--coefficients", str(coefficients_file.written(tmp_path))]):
        assert run(["replay", str(header), "--model", MODEL, "--latency-model", "fitted", "--json", *more]) == 0
        found.add(capsys.readouterr().out)
    assert len(found) == 2


def test_coefficients_need_the_fitted_model(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, THREE)
    assert (
        run(["replay", str(header), "--model", MODEL, "--latency-model", "roofline", "--coefficients", "c.yaml"]) == 2
    )
    assert "--coefficients needs --latency-model fitted or kernels, got roofline" in capsys.readouterr().err


def test_a_recording_comes_as_many_times_as_fast_as_asked(tmp_path: Path, capsys: Captured) -> None:
    rows = [row(number, 1_000 + 13_000 * number, deadline_us=91_000 + 13_000 * number) for number in range(4)]
    header = written(tmp_path, rows)
    replayed(header, capsys, "--speedup", "1.3", "--trace-output", str(tmp_path / "fast"))
    fast = read_trace(tmp_path / "fast.yaml").rows
    assert [each.arrival_time_us for each in fast] == [1_000, 11_000, 21_000, 31_000]
    assert {each.deadline_us - each.arrival_time_us for each in fast} == {90_000}
    assert "--scale-pauses needs --session-mode closed-loop" in refused(capsys, str(header), "--scale-pauses")
