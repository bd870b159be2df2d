import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from tests.patience import PATIENCE_S
from traces import read_itl, read_rows, read_trace


def observe(
    server_url: str, prefix: Path, *more: str, largest_file: int | None = None, stdout: int | IO[str] = subprocess.PIPE
) -> tuple[int, str, str]:
    """The exit code and what was printed, of the command in a process of its own."""
    command = [sys.executable, "-m", "blis_sim.cli", "observe", "--url", server_url, "--model", "ok", "--rate", "100"]
    command += ["--num-requests", "500", "--output-tokens", "4", "--record-itl", "--output", str(prefix), *more]
    limit = None
    if largest_file is not None:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    temporary = {**os.environ, "TMPDIR": str(prefix.parent)}
    done = subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=limit,
        env=temporary,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("full", ["--trace-header", "--itl-output"])
def test_a_full_disk_at_the_start_is_one_line(full: str, server_url: str, tmp_path: Path) -> None:
    code, printed, messages = observe(server_url, tmp_path / "out", full, "/dev/full")
    assert (code, printed) == (2, "")
    assert messages.startswith("blis observe: error: ")
    assert messages.endswith("no space left on device\n")
    assert messages.count("\n") == 1


def test_a_disk_that_gets_full_ends_the_run_with_what_was_measured(server_url: str, tmp_path: Path) -> None:
    # The limit is that of what is rescued, too.
    code, printed, messages = observe(server_url, tmp_path / "out", "--num-requests", "800", largest_file=12_000)
    assert code == 1
    summary = json.loads(printed)
    assert summary["completed"] > 5
    assert summary["not_sent"] > 0
    (line,) = [line for line in messages.splitlines() if line.startswith("blis observe: error: ")]
    assert str(tmp_path / "out.csv") in line
    assert f"file too large; {summary['not_sent']} requests not sent" in line
    assert "Traceback" not in messages
    # What is in the file is whole, and what did not fit is elsewhere: no finished request is lost.
    recorded = [row for row in read_trace(tmp_path / "out.yaml").rows if row.status == "ok"]
    (folder,) = tmp_path.glob("blis-observe-*")
    rescued = read_rows(folder / "rest.csv")
    assert len(recorded) + len(rescued) == summary["completed"]
    assert f"{len(rescued)} finished requests did not fit there and are in {folder / 'rest.csv'}" in messages
    assert {row.request_id for row in rescued} <= set(read_itl(folder / "rest.itl.csv"))


def test_a_recording_cut_by_a_full_disk_can_be_resumed_where_there_is_room(server_url: str, tmp_path: Path) -> None:
    few = ("--num-requests", "40")
    assert observe(server_url, tmp_path / "out", *few, largest_file=3000)[0] == 1
    code, printed, _ = observe(server_url, tmp_path / "out", *few, "--resume")
    assert code == 0
    rows = read_trace(tmp_path / "out.yaml").rows
    assert sorted(row.request_id for row in rows) == list(range(40))
    assert {row.status for row in rows} == {"ok"}
    assert json.loads(printed)["completed"] + json.loads(printed)["recorded_earlier"] == 40
    assert read_itl(tmp_path / "out.itl.csv").keys() == {row.request_id for row in rows}


def test_rescued_rows_are_reported_even_if_the_summary_has_no_room(server_url: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, messages = observe(
            server_url, tmp_path / "out", "--num-requests", "200", largest_file=8000, stdout=full
        )
    assert code == 1
    (folder,) = tmp_path.glob("blis-observe-*")
    assert f"finished requests did not fit there and are in {folder / 'rest.csv'}" in messages
    assert f"blis observe: error: cannot write {tmp_path / 'out.csv'}" in messages
    assert messages.endswith("blis observe: error: cannot write to standard output: No space left on device\n")
