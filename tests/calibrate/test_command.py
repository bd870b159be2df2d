"""`blis calibrate` as its user meets it: flags, tables, notes and errors."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blis_sim.installation import install_command
from blis_sim.options import BlisError, OptionError
from calibrate.command import CalibrateOptions, run
from calibrate.compare import CalibrateError
from tests.calibrate.recordings import result, row
from traces import ItlWriter, ResultRow, SloTargets, TraceHeader, TraceRow, write_results, write_trace

ROWS = [
    row(number, send_us=1_000_000 + 5000 * number, ttft_us=50_000 + number, e2e_us=200_000 + 9000 * number)
    for number in range(8)
]
RESULTS = [result(number, ttft_us=52_000, e2e_us=198_000 + 9100 * number) for number in range(8)]


def _files(folder: Path, rows: list[TraceRow], results: list[ResultRow], **header: Any) -> dict[str, str]:
    write_trace(folder / "t.yaml", TraceHeader(mode="real", **header), rows)
    write_results(folder / "r.json", results)
    return {"trace": str(folder / "t.yaml"), "sim_results": str(folder / "r.json")}


def _run(**options: Any) -> int:
    return run(CalibrateOptions(**options))


def _error(**options: Any) -> str:
    with pytest.raises(BlisError) as raised:
        _run(**options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_tables_go_to_stdout_and_a_clean_run_has_no_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(**_files(tmp_path, ROWS, RESULTS)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line.split() for line in out.splitlines() if line]
    assert lines[0] == ["latency", "in", "ms", "mean", "p50", "p90", "p99"]
    assert lines[1][:4] == ["TTFT", "real", "50.00", "50.00"]
    assert lines[3][0] == "error"
    assert lines[3][1] == "+4.0%"
    assert ["TTFT", "8", "4.0%", "-", "excellent", "over-predict"] in lines
    assert any(line[:2] == ["output", "tokens/s"] for line in lines)


def test_a_report_never_takes_the_place_of_what_is_compared(tmp_path: Path) -> None:
    files = _files(tmp_path, ROWS, RESULTS)
    for read in ("t.yaml", "t.csv", "r.json"):
        before = (tmp_path / read).read_bytes()
        assert _error(**files, report=str(tmp_path / read)).startswith(f"--report would write over {tmp_path / read}, ")
        assert (tmp_path / read).read_bytes() == before


@pytest.mark.parametrize(
    "absurd", [{"network_bandwidth_mbps": 1e-300}, {"network_rtt_us": 10**30}], ids=lambda each: next(iter(each))
)
def test_an_absurd_network_is_refused(tmp_path: Path, absurd: dict[str, Any]) -> None:
    flag = "--" + next(iter(absurd)).replace("_", "-")
    assert _error(**_files(tmp_path, ROWS, RESULTS), **absurd).startswith(f"{flag} must be ")


def test_output_to_a_file_has_no_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(**_files(tmp_path, [row(0, slo_class="[bold]" + "x" * 200)], RESULTS))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]" + "x" * 200 in out


def test_left_out_rows_are_reported_on_stderr_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {"send_us": 2_000_000}
    rows = [*ROWS, row(3, **late), row(50, **late), row(51, status="error", **late), row(52, ttft_us=-9, **late)]
    results = [*RESULTS, result(60)]
    files = _files(tmp_path, rows, results, measured_rtt_ms=0.5)
    assert _run(**files, warmup_requests=1) == 0
    assert [line.removeprefix("blis calibrate: ") for line in capsys.readouterr().err.splitlines()] == [
        "adding the round trip in the trace header, 500 us, to simulated latencies",
        "rows left out as warm-up: 1",
        "rows left out because they failed: 1",
        "rows left out for want of usable times: 1",
        "rows left out because an earlier one has their request_id: 1",
        "rows without a result of the simulation: 1",
        "results without a row of the recording: 1",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input_tokens": 11}, "request_id 53 key input_tokens: expected 10 as in the recording, got 11; simulate"),
        ({"output_tokens": 4}, "request_id 53 key output_tokens: expected 5 as in the recording, got 4; simulate"),
    ],
)
def test_refuses_results_whose_token_counts_are_not_the_recordings(
    fields: dict[str, int], said: str, tmp_path: Path
) -> None:
    files = _files(tmp_path, [*ROWS, row(53)], [*RESULTS, result(53, **fields)])
    with pytest.raises(CalibrateError, match=said):
        _run(**files)
    assert _run(**files, compat=True, report=str(tmp_path / "report.json")) == 0


@pytest.mark.parametrize(
    ("recorded", "simulated"),
    [
        ({"server_input_tokens": 12}, {"input_tokens": 12}),
        ({"server_input_tokens": 12}, {"input_tokens": 10}),
        ({"prefix_group": "g", "prefix_length": 7}, {"input_tokens": 17}),
        ({}, {"input_tokens": 0, "output_tokens": 0}),
    ],
)
def test_takes_prompts_as_counted_with_or_without_what_is_shared(
    recorded: dict[str, Any], simulated: dict[str, int], tmp_path: Path
) -> None:
    assert _run(**_files(tmp_path, [*ROWS, row(53, **recorded)], [*RESULTS, result(53, **simulated)])) == 0


def test_the_report_accounts_for_every_row(tmp_path: Path) -> None:
    rows = [*ROWS, row(50), row(51, status="timeout")]
    _run(**_files(tmp_path, rows, RESULTS), report=str(tmp_path / "out.json"))
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["trace_info"]["num_requests"] == 10
    assert report["rows"] | {"warm_up": 0} == {
        "matched": 8,
        "warm_up": 0,
        "failed": 1,
        "repeated": 0,
        "without_times": 0,
        "unmatched": 1,
        "unmatched_results": 0,
    }
    assert report["metrics"]["ttft"]["request_level"]["pearson_r"] is None
    assert report["throughput"]["requests_per_s"]["real"] > 0


def test_a_poor_grade_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(**_files(tmp_path, ROWS, [result(number, ttft_us=1, e2e_us=2) for number in range(8)])) == 0
    assert "exceeds the threshold of 15.0%" in capsys.readouterr().out


def test_the_header_may_be_given_by_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path, ROWS, RESULTS)
    (tmp_path / "t.csv").rename(tmp_path / "rows.csv")
    _run(trace_header=files["trace"], trace_data=str(tmp_path / "rows.csv"), sim_results=files["sim_results"])
    assert "TTFT" in capsys.readouterr().out


def test_token_times_decide_the_time_between_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ItlWriter(tmp_path / "t.itl.csv.gz") as writer:
        for each in ROWS[:-1]:
            writer.write(each.request_id, [each.first_chunk_time_us + 30_000 * place for place in range(5)])
    _run(**_files(tmp_path, ROWS, RESULTS), itl_data=str(tmp_path / "t.itl.csv.gz"))
    out, err = capsys.readouterr()
    assert any(line.split()[:4] == ["ITL", "real", "30.00", "30.00"] for line in out.splitlines())
    assert err == "blis calibrate: pairs without token times: 1\n"


def test_limits_on_the_command_line_replace_those_of_the_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _files(tmp_path, ROWS, RESULTS, goodput_slo_targets={"batch": SloTargets(ttft_ms=1)})
    _run(**files)
    assert any(line.split()[:3] == ["batch", "0", "-"] for line in capsys.readouterr().out.splitlines())
    _run(**files, slo_ttft="default=51ms", slo_itl="default=1s")
    out, err = capsys.readouterr()
    assert any(line.split()[:4] == ["default", "8", "100.0%", "0.0%"] for line in out.splitlines())
    assert err == ""


def test_an_itl_limit_without_token_times_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = result(ROWS[-1].request_id, output_tokens=1)
    files = _files(tmp_path, [*ROWS[:-1], replace(ROWS[-1], output_tokens=1)], [*RESULTS[:-1], short])
    _run(**files, slo_itl="default=1s")
    err = capsys.readouterr().err
    assert "blis calibrate: ITL limits could not be checked for all pairs, for want of times between tokens\n" in err


def test_replies_that_were_not_streamed_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [replace(each, first_chunk_time_us=each.last_chunk_time_us) for each in ROWS[:3]]
    _run(**_files(tmp_path, [*whole, *ROWS[3:]], RESULTS))
    said = "blis calibrate: pairs whose recorded TTFT is their E2E, for their tokens came in one piece: 3\n"
    assert capsys.readouterr().err == said


def test_hit_rates_are_compared_when_both_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.json").write_text('{"cache_hit_rate": 0.25}')
    files = _files(tmp_path, ROWS, RESULTS, observed_kv_metrics={"hit_rate": 0.5})
    _run(**files, sim_metrics=str(tmp_path / "m.json"))
    said = "KV hit rate: real 50.0%, simulated 25.0%, 25.00 points apart (exceeds 5)"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            "no recording is in this folder: give its header file, as in `blis calibrate trace.yaml`, or record one "
            "with `blis observe`",
        ),
        (
            {"trace": "a", "trace_header": "a"},
            "give the recording's header file once, as in `blis calibrate trace.yaml`",
        ),
        (
            {"trace": "t.yaml", "sim_results": "r", "replay_flag": ("--tp", "2")},
            "--tp is for a replay, which --sim-results takes the place of",
        ),
        ({"trace": "t", "sim_results": "r", "network_rtt_us": -5}, "--network-rtt-us must be at least -1, got -5"),
        ({"trace": "t", "sim_results": "r", "warmup_requests": -2}, "--warmup-requests must be at least -1, got -2"),
        (
            {"trace": "t", "sim_results": "r", "ttft_mape_threshold": float("nan")},
            "--ttft-mape-threshold must be a finite number, got nan",
        ),
        ({"adapter_reference": "a"}, "--adapter-reference needs --sim-metrics, the metrics to compare with it"),
        (
            {"trace": "t", "sim_results": "r", "sim_metrics_blind": "b"},
            "--sim-metrics-blind needs --adapter-reference, the figures to compare with",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        CalibrateOptions(**options)
    assert str(raised.value) == said


def test_results_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    files = _files(tmp_path, ROWS, [])
    path = files["sim_results"]
    assert _error(**files) == f"{path} holds no results, so there is nothing to compare"
    Path(path).write_text('{"a":1}')
    assert _error(**files) == f"{path}: expected a JSON array of results, got an object"


def test_results_of_other_requests_are_refused(tmp_path: Path) -> None:
    said = _error(**_files(tmp_path, ROWS, [result(999)]))
    assert said == f"no row of {tmp_path}/t.csv can be compared: of 8, 8 have a request_id the results lack"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = _files(tmp_path, ROWS, RESULTS)
    assert _error(**files, itl_data="/nope") == "/nope: no such file"
    assert _error(**files, sim_metrics=str(tmp_path)) == f"{tmp_path}: expected a file, got a folder"
    assert _error(**files | {"sim_results": "/nope/r.json"}) == "/nope/r.json: no such folder"
    assert _error(**files, report="/nope/out.json") == "--report must be in a folder that exists, got /nope/out.json"


def test_the_modules_behind_the_command_are_loaded_only_when_it_runs() -> None:
    import subprocess

    code = "import sys, calibrate.command; sys.exit(any(name in sys.modules for name in ('numpy', 'rich', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("flag", ["html", "plots"])
def test_pictures_without_matplotlib_are_refused_before_the_comparison(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blis_sim.installation.find_spec", lambda name: None)
    files = _files(tmp_path, ROWS, RESULTS)
    complaint = f"--{flag} needs matplotlib: {install_command('plots')}"
    assert _error(**files, **{flag: str(tmp_path / "written")}) == complaint
