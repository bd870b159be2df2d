"""`blis calibrate` without results of a simulation: the recording is replayed with the settings of its server."""

import os
from pathlib import Path

import pytest

import blis_sim
from blis_sim.cli.main import run
from blis_sim.options import BlisError
from calibrate.own_replay import newest_recording, split_arguments
from tests.calibrate.recordings import row
from traces import ItlWriter, TraceHeader, read_trace, write_trace

SERVER = {"type": "vllm", "model": "qwen/qwen3-14b", "tensor_parallel": 1}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording whose latencies are those of a replay of it."""
    path = tmp_path / "real.yaml"
    rows = [row(n, send_us=200_000 * n, input_tokens=400 + 40 * n, output_tokens=16 + n) for n in range(12)]
    write_trace(path, TraceHeader(mode="real", server=SERVER), rows)
    found = blis_sim.replay(path, model="qwen/qwen3-14b", hardware="H100")
    times = zip(found.requests["ttft_ms"], found.requests["e2e_ms"], strict=True)
    lived = [
        row(
            each.request_id,
            send_us=each.send_time_us,
            ttft_us=round(1000 * ttft_ms),
            e2e_us=round(1000 * e2e_ms),
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens,
        )
        for each, (ttft_ms, e2e_ms) in zip(rows, times, strict=True)
    ]
    write_trace(path, TraceHeader(mode="real", server=SERVER), lived)
    return path


@pytest.mark.slow
def test_a_recording_alone_is_replayed_compared_and_paged(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", str(recording), "--fail-over", "ttft=1,e2e=1"]) == 0
    out, err = capsys.readouterr()
    grades = [line.split() for line in out.splitlines() if "excellent" in line]
    assert [line[0] for line in grades] == ["TTFT", "E2E", "ITL"]
    assert "--model qwen/qwen3-14b" in err
    assert "Two runs of one real server differ by about 6.7% in TTFT" in out
    page = recording.with_suffix(".calibration.html")
    assert f"the page is {page}" in err
    assert page.read_text().startswith("<!doctype html>")


def test_flags_of_a_replay_win_over_the_settings_of_the_server(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = recording.with_name("report.json")
    command = ["calibrate", str(recording), "--hardware", "H200", "--report", str(report), "--fail-over", "itl=5"]
    assert run(command) == 3
    assert "ITL MAPE" in capsys.readouterr().err
    assert report.exists()
    assert not recording.with_suffix(".calibration.html").exists()


@pytest.mark.slow
def test_token_times_beside_the_recording_are_taken(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", str(recording), "--report", str(recording.with_name("report.json"))]
    assert run(command) == 0
    assert "without token times" not in capsys.readouterr().err
    writer = ItlWriter(recording.with_suffix(".itl.csv"))
    writer.write(0, [1_000, 2_000])
    writer.close()
    assert run(command) == 0
    assert "pairs without token times: 11" in capsys.readouterr().err


def test_the_newest_recording_of_a_folder_is_taken_and_named(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recording.parent
    monkeypatch.chdir(folder)
    later = folder / "later.yaml"
    write_trace(later, TraceHeader(mode="real", server=SERVER), read_trace(recording).rows)
    write_trace(folder / "simulated.yaml", TraceHeader(mode="generated"), read_trace(recording).rows)
    (folder / "spec.yaml").write_text("a workload: not a recording\n")
    (folder / "spec.csv").write_text("x\n")
    os.utime(recording, ns=(1, 1))
    assert newest_recording(Path()) == Path("later.yaml")
    assert run(["calibrate", "--report", "report.json"]) == 0
    assert "later.yaml, the newest recording of a server in this folder" in capsys.readouterr().err


def test_a_recording_that_does_not_name_its_model_asks_for_it(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(recording, TraceHeader(mode="real"), read_trace(recording).rows)
    assert run(["calibrate", str(recording)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"blis calibrate: error: --model must be given: {recording} does not say what its server was; "
        "give --model and --hardware, or --sim-results of a replay"
    )


def test_the_python_interface_replays_too(recording: Path) -> None:
    assert blis_sim.calibrate(recording).metrics["e2e"].grade == "excellent"


def test_a_flag_that_neither_command_has_is_refused(recording: Path) -> None:
    from calibrate.command import CalibrateOptions

    own, others = split_arguments(CalibrateOptions, ["--tp=2", "t.yaml", "--report", "r.json"])
    assert (own, others) == (["--report", "r.json", "t.yaml"], ["--tp", "2"])
    with pytest.raises(BlisError, match="no such option: --results-path"):
        split_arguments(CalibrateOptions, [str(recording), "--results-path", "x"])
