"""One schedule sent by several processes: the same requests, one recording, whichever process is killed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from tests.observe.conftest import Holding
from tests.observe.run_in_process import started
from tests.observe.workloads.test_conversations import talks
from tests.patience import PATIENCE_S, wait_until
from traces import read_itl, read_trace

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]

SETTINGS = {"model": "ok-5-1", "rate": 100.0, "num_requests": 90, "prompt_tokens": 20, "output_tokens": 4}


def options(server_url: str, folder: Path, **more: Any) -> ObserveOptions:
    given: dict[str, Any] = {"processes": 2, "record_itl": True, "arrival": "constant", **SETTINGS, **more}
    return ObserveOptions(url=server_url, output=str(folder / "out"), **given)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for each in map(int, found) if b"observe.processes" in Path(f"/proc/{each}/cmdline").read_bytes()]


def wait_for_rows(path: Path, count: int) -> None:
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") > count)


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: all(state(pid) == "Z" for pid in pids))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def check_complete(folder: Path) -> None:
    rows = read_trace(folder / "out.yaml").rows
    assert sorted(row.request_id for row in rows) == list(range(90))
    assert {row.status for row in rows} == {"ok"}
    assert {row.arrival_time_us for row in rows} == {10_000 * place for place in range(1, 91)}
    assert {number: len(times) for number, times in read_itl(folder / "out.itl.csv").items()} == dict.fromkeys(
        range(90), 5
    )


def check_sent_again(folder: Path, heard: list[dict[str, Any]], before: dict[int, str]) -> None:
    """Rows recorded before are unchanged and were not sent again, unlike all the rest."""
    rows = {row.request_id: row.x_request_id for row in read_trace(folder / "out.yaml").rows}
    sent = {each["headers"].get("x-request-id") for each in heard}
    assert before.items() <= rows.items()
    assert not sent & set(before.values())
    assert {name for request_id, name in rows.items() if request_id not in before} <= sent


@pytest.mark.slow
def test_three_processes_send_the_requests_of_one(observe: Observe, seen: Seen) -> None:
    given = {**SETTINGS, "num_requests": 40}
    sent = []
    for processes in (1, 3):
        run = observe(**given, processes=processes, output=f"by{processes}")
        assert (run.code, run.summary["completed"], run.summary["not_sent"]) == (0, 40, 0)
        assert len(run.trace.rows) == 40
        by_id = {row.x_request_id: row for row in run.trace.rows}
        bodies = {each["headers"].get("x-request-id"): each["body"] for each in seen()}
        sent.append({by_id[name].request_id: (by_id[name].arrival_time_us, bodies[name]) for name in by_id})
    assert sent[0] == sent[1]


@pytest.mark.slow
def test_figures_of_all_processes_are_in_the_summary(observe: Observe) -> None:
    run = observe(**SETTINGS, processes=2)
    assert run.summary["output_tokens"] == 90 * 4
    latest = max((row.last_chunk_time_us - row.send_time_us) / 1000 for row in run.trace.rows)
    assert run.summary["e2e_ms"]["max"] == pytest.approx(latest, abs=0.002)
    assert min(row.send_time_us for row in run.trace.rows if row.request_id >= 1) > 0


def test_warm_up_requests_are_sent_and_left_out(observe: Observe) -> None:
    run = observe(**SETTINGS, processes=2, warmup_requests=10)
    assert sorted(row.request_id for row in run.trace.rows) == list(range(10, 90))


@pytest.mark.slow
def test_an_interrupt_writes_all_there_is(server_url: str, tmp_path: Path) -> None:
    with started(options(server_url, tmp_path, num_requests=5000, model="ok-50-20")) as process:
        wait_for_rows(tmp_path / "out.csv", 20)
        process.send_signal(signal.SIGINT)
        printed, messages = process.communicate(timeout=PATIENCE_S)
    summary = json.loads(printed)
    rows = read_trace(tmp_path / "out.yaml").rows
    assert process.returncode == 130
    assert len([row for row in rows if row.status == "ok"]) == summary["completed"] >= 20
    assert summary["not_sent"] == 5000 - len(rows)
    assert "interrupted by SIGINT" in messages
    assert "Traceback" not in messages


@pytest.mark.slow
def test_when_the_run_is_killed_senders_stop_and_resuming_sends_the_rest(
    server_url: str, seen: Seen, holding: Holding, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holding.after(20)
    with started(options(server_url, tmp_path)) as process:
        wait_for_rows(tmp_path / "out.csv", 15)
        senders = children(process.pid)
        process.kill()
    wait_until_gone(senders)
    holding.release()
    rows = read_trace(tmp_path / "out.yaml").rows
    before = {row.request_id: row.x_request_id for row in rows if row.status == "ok"}
    assert len(before) >= 15
    seen()
    assert run(options(server_url, tmp_path, resume=True)) == 0
    check_complete(tmp_path)
    assert json.loads(capsys.readouterr().out)["recorded_earlier"] == len(before)
    check_sent_again(tmp_path, seen(), before)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run_and_loses_no_row(
    server_url: str, holding: Holding, tmp_path: Path
) -> None:
    holding.after(20)
    with started(options(server_url, tmp_path)) as process:
        wait_for_rows(tmp_path / "out.csv", 15)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        printed, messages = process.communicate(timeout=PATIENCE_S)
    holding.release()
    assert process.returncode == 1
    assert "a process that sends has ended with code -9; --resume sends what has no row" in messages
    assert "Traceback" not in messages
    assert json.loads(printed)["not_sent"] > 0
    assert run(options(server_url, tmp_path, resume=True)) == 0
    check_complete(tmp_path)


def test_a_missing_server_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options("http://127.0.0.1:9", tmp_path)) == 1
    assert capsys.readouterr().err == "blis observe: error: cannot reach http://127.0.0.1:9: connection refused\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_concurrency": 5}, "--processes and --max-concurrency exclude each other"),
        ({"trace_data": "x.csv.gz", "trace_header": "x.yaml"}, "cannot be gzipped, got x.csv.gz"),
        ({"processes": 0}, "--processes must be at least 1, got 0"),
    ],
)
def test_options_that_need_one_line_or_one_stream_of_bytes_are_refused(
    given: dict[str, Any], message: str, server_url: str, tmp_path: Path
) -> None:
    with pytest.raises(BlisError, match=message):
        options(server_url, tmp_path, **given)


def test_conversations_are_refused(server_url: str, tmp_path: Path) -> None:
    made = ObserveOptions(url=server_url, workload_spec=talks(tmp_path), output=str(tmp_path / "out"), processes=2)
    with pytest.raises(BlisError, match="--processes needs requests with times of their own"):
        run(made)
