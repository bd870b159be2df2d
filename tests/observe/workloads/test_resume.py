"""Runs that end before their time, and going on with what they recorded."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from tests.observe import run_in_process
from tests.observe.conftest import Holding
from tests.patience import PATIENCE_S, wait_until
from traces import read_itl, read_trace
from traces.append_file import exclusive_writer

SETTINGS: dict[str, Any] = {
    "model": "ok-20-5",
    "rate": 100.0,
    "arrival": "constant",
    "prompt_tokens": 20,
    "output_tokens": 4,
}
SERVER = Path(__file__).parents[1] / "fake_server.py"


def options(server_url: str, folder: Path, **more: Any) -> ObserveOptions:
    given = {"num_requests": 60, "record_itl": True} | SETTINGS | more
    return ObserveOptions(url=server_url, output=str(folder / "out"), **given)


def started(server_url: str, folder: Path, **more: Any) -> subprocess.Popen[str]:
    """Run the command in a process of its own."""
    return run_in_process.started(options(server_url, folder, **more))


def wait_for_rows(path: Path, count: int) -> int:
    """Wait until so many rows are on disk; how many there are."""

    def num_rows() -> int:
        return path.read_bytes().count(b"\n") - 1 if path.exists() else 0

    wait_until(lambda: num_rows() >= count)
    return num_rows()


def test_a_kill_loses_no_finished_row_and_resuming_sends_only_the_rest(
    server_url: str,
    seen: Callable[[], list[dict[str, Any]]],
    holding: Holding,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    holding.after(20)
    process = started(server_url, tmp_path)
    num_there = wait_for_rows(tmp_path / "out.csv", 15)
    process.kill()
    process.communicate()
    holding.release()
    before = {row.request_id: row for row in read_trace(tmp_path / "out.yaml").rows}
    assert num_there <= len(before) < 60
    assert before.keys() <= read_itl(tmp_path / "out.itl.csv").keys()
    seen()

    assert run(options(server_url, tmp_path, resume=True)) == 0
    rows = {row.request_id: row for row in read_trace(tmp_path / "out.yaml").rows}
    assert sorted(rows) == list(range(60))
    assert {number: rows[number] for number in before} == before
    sent = {each["headers"].get("x-request-id") for each in seen()}
    assert {row.x_request_id for number, row in rows.items() if number not in before} <= sent
    assert not sent & {row.x_request_id for row in before.values()}
    assert [rows[number].arrival_time_us for number in range(60)] == [10_000 * place for place in range(1, 61)]
    chunks = read_itl(tmp_path / "out.itl.csv")
    assert {number: len(times) for number, times in chunks.items()} == dict.fromkeys(range(60), 5)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["recorded_earlier"] == len(before)
    assert f"{len(before)} requests were recorded earlier" in printed.err


def test_resuming_keeps_to_the_gaps_of_the_schedule(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(server_url, tmp_path, record_itl=False)) == 0
    data = tmp_path / "out.csv"
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:21]))
    kept = {row.request_id for row in read_trace(tmp_path / "out.yaml").rows}
    capsys.readouterr()
    assert run(options(server_url, tmp_path, record_itl=False, resume=True)) == 0
    new = [row for row in read_trace(tmp_path / "out.yaml").rows if row.request_id not in kept]
    assert len(new) == 40
    new.sort(key=lambda row: row.arrival_time_us)
    lags = [row.send_time_us - row.arrival_time_us for row in new]
    # Wherever the schedule has a pause, so has the sending: after the first, which may be late, none is early.
    latest_us = json.loads(capsys.readouterr().out)["send_lag_ms"]["max"] * 1000
    assert min(lags) >= lags[0] - latest_us - 1


def test_a_line_that_was_cut_and_chunks_without_a_row_are_dropped(server_url: str, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, num_requests=10)) == 0
    data, itl = tmp_path / "out.csv", tmp_path / "out.itl.csv"
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(lines[:-2]) + lines[-2][:40])
    itl.write_text(itl.read_text() + "99,0,17")
    assert run(options(server_url, tmp_path, num_requests=10, resume=True)) == 0
    assert sorted(row.request_id for row in read_trace(tmp_path / "out.yaml").rows) == list(range(10))
    assert {number: len(times) for number, times in read_itl(itl).items()} == dict.fromkeys(range(10), 5)


def test_requests_that_ctrl_c_cut_are_sent_again(server_url: str, holding: Holding, tmp_path: Path) -> None:
    holding.after(5)
    process = started(server_url, tmp_path)
    wait_for_rows(tmp_path / "out.csv", 5)
    holding.wait_for_some()
    process.send_signal(signal.SIGINT)
    process.communicate()
    holding.release()
    assert any(row.error_message == "cancelled" for row in read_trace(tmp_path / "out.yaml").rows)
    assert run(options(server_url, tmp_path, resume=True)) == 0
    rows = read_trace(tmp_path / "out.yaml").rows
    assert sorted(row.request_id for row in rows) == list(range(60))
    assert {row.status for row in rows} == {"ok"}


def test_a_compressed_recording_survives_a_kill_as_well(server_url: str, holding: Holding, tmp_path: Path) -> None:
    data = tmp_path / "out.csv.gz"
    paths = {"trace_header": str(tmp_path / "out.yaml"), "trace_data": str(data)}
    holding.after(40)
    process = started(server_url, tmp_path, **paths)
    wait_until(lambda: data.exists() and data.stat().st_size >= 1500)
    process.kill()
    process.communicate()
    holding.release()
    assert run(options(server_url, tmp_path, resume=True, **paths)) == 0
    rows = read_trace(tmp_path / "out.yaml", data).rows
    assert sorted(row.request_id for row in rows) == list(range(60))
    assert read_itl(tmp_path / "out.itl.csv").keys() == {row.request_id for row in rows}


def test_a_complete_recording_is_left_alone(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(server_url, tmp_path, num_requests=5)) == 0
    before = (tmp_path / "out.csv").read_bytes()
    capsys.readouterr()
    assert run(options(server_url, tmp_path, num_requests=5, resume=True)) == 0
    assert "nothing is left to send" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_bytes() == before


def test_resuming_without_a_recording_starts_one(server_url: str, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, num_requests=5, resume=True)) == 0
    assert len(read_trace(tmp_path / "out.yaml").rows) == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 7}, "recorded with --seed 42, cannot be resumed with 7"),
        ({"rate": 50.0}, "is of another schedule"),
        ({"prompt_tokens": 21}, "the one to resume has 21"),
        ({"num_requests": 3}, "the schedule to resume ends at 2"),
        ({"warmup_requests": 1}, "recorded with --warmup-requests 0"),
        ({"model": "nousage"}, "recorded from model ok-20-5, cannot be resumed with nousage"),
    ],
)
def test_another_run_cannot_be_resumed(changed: dict[str, Any], message: str, server_url: str, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, num_requests=8)) == 0
    data = tmp_path / "out.csv"
    cut = data.read_text().rpartition("\n")[0].rpartition("\n")[0] + "\n"
    data.write_text(cut)
    with pytest.raises(BlisError, match=message):
        run(options(server_url, tmp_path, **({"num_requests": 8} | changed), resume=True))
    assert data.read_text() == cut


def test_a_server_that_dies_takes_no_finished_row_with_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        process = started(url, tmp_path, num_requests=120)
        num_there = wait_for_rows(tmp_path / "out.csv", 20)
        server.kill()
        printed, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    rows = read_trace(tmp_path / "out.yaml").rows
    assert sorted(row.request_id for row in rows) == list(range(120))
    finished = [row for row in rows if row.status == "ok"]
    assert len(finished) == json.loads(printed)["completed"] >= num_there
    assert {row.request_id for row in finished} <= read_itl(tmp_path / "out.itl.csv").keys()
    assert all(row.error_message for row in rows if row.status != "ok")
    assert "Traceback" not in messages


@pytest.mark.parametrize("resume", [False, True])
def test_a_recording_that_is_being_made_is_left_alone(server_url: str, tmp_path: Path, resume: bool) -> None:
    assert run(options(server_url, tmp_path)) == 0
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    header = next(path for path in files if path.suffix == ".yaml")
    num_more = {"num_requests": 30} if resume else {}
    with exclusive_writer(header), pytest.raises(BlisError, match="another process is writing it"):
        run(options(server_url, tmp_path, resume=resume, **num_more))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
