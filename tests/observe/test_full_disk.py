import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest


def observe(server_url: str, prefix: Path, *more: str, largest_file: int | None = None) -> tuple[int, str, str]:
    """The exit code and what was printed, of the command in a process of its own."""
    command = [sys.executable, "-m", "blis_cli", "observe", "--url", server_url, "--model", "ok", "--rate", "100"]
    command += ["--num-requests", "500", "--output-tokens", "4", "--record-itl", "--output", str(prefix), *more]
    limit = None
    if largest_file is not None:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20, preexec_fn=limit)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("full", ["--trace-header", "--itl-output"])
def test_a_full_disk_at_the_start_is_one_line(full: str, server_url: str, tmp_path: Path) -> None:
    code, printed, messages = observe(server_url, tmp_path / "out", full, "/dev/full")
    assert (code, printed) == (2, "")
    assert messages.startswith("blis observe: error: ")
    assert messages.endswith("no space left on device\n")
    assert messages.count("\n") == 1


def test_a_disk_that_gets_full_ends_the_run_with_what_was_measured(server_url: str, tmp_path: Path) -> None:
    code, printed, messages = observe(server_url, tmp_path / "out", largest_file=3000)
    assert code == 1
    summary = json.loads(printed)
    assert summary["completed"] > 5
    assert summary["not_sent"] > 400
    (line,) = [line for line in messages.splitlines() if line.startswith("blis observe: error: ")]
    assert str(tmp_path / "out.csv") in line
    assert f"file too large; {summary['not_sent']} requests not sent" in line
    assert "Traceback" not in messages
