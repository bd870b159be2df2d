import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from observe.event_loop import Interrupt
from tests import fork_server
from tests.observe.conftest import Holding
from tests.patience import PATIENCE_S, wait_until
from traces import read_itl, read_trace

SCRIPT = """
import sys
from observe.command import ObserveOptions, run
url, model, prefix = sys.argv[1:]
sys.exit(run(ObserveOptions(
    url=url, model=model, rate=50.0, num_requests=5000, prompt_tokens=20, output_tokens=10,
    record_itl=True, output=prefix,
)))
"""


TWICE = """
import asyncio, os, signal
from observe.event_loop import run_loop
from observe.event_loop import Interrupt
from tests.observe.conftest import Holding
from tests.patience import PATIENCE_S, wait_until

async def stubborn():
    with Interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(30)
        finally:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)

run_loop(stubborn())
"""


@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_and_everything_is_written(
    which: signal.Signals, code: int, server_url: str, holding: Holding, tmp_path: Path
) -> None:
    holding.after(20)
    command = [sys.executable, "-c", SCRIPT, server_url, "ok", str(tmp_path / "out")]
    with fork_server.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_rows(tmp_path / "out.csv", 20)
        holding.wait_for_some()
        process.send_signal(which)
        printed, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    summary = json.loads(printed)
    rows = read_trace(tmp_path / "out.yaml").rows
    finished = [row for row in rows if row.status == "ok"]
    cut = [row for row in rows if row.error_message == "cancelled"]
    assert len(finished) == summary["completed"] >= 20
    assert len(cut) == summary["failed"]["cancelled"] > 0
    assert {row.status for row in cut} == {"error"}
    assert sorted(row.request_id for row in rows) == list(range(len(rows)))
    assert summary["not_sent"] == 5000 - len(rows)
    assert f"interrupted by {which.name}: {summary['not_sent']} requests not sent, {len(cut)} cut" in messages
    assert {row.request_id for row in finished} <= set(read_itl(tmp_path / "out.itl.csv"))
    assert "Traceback" not in messages


def test_rows_are_on_disk_before_the_run_ends(server_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, server_url, "ok", str(tmp_path / "out")]
    with fork_server.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_rows(tmp_path / "out.csv", 5)
        process.kill()
    assert len(read_trace(tmp_path / "out.yaml").rows) >= 5


async def test_last_results_are_received_even_if_the_signal_comes_meanwhile() -> None:
    async def last_words() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        return "all is well"

    with Interrupt() as interrupt:
        assert await interrupt.run_to_completion(last_words()) == "all is well"
    assert interrupt.exit_code == 143
    await asyncio.sleep(0)  # nothing is left that would be cancelled


async def test_afterwards_signals_are_answered_as_before() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_ends_the_process_without_a_traceback() -> None:
    done = fork_server.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


async def test_another_cancellation_is_none_of_its_business() -> None:
    with Interrupt() as interrupt:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await interrupt.run_to_completion(asyncio.sleep(0.05))
        task.uncancel()


def wait_for_rows(path: Path, count: int) -> None:
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") > count)
