"""The processes of a day: a server, a recording proxy, and commands that read what was recorded."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import fork_server

BLIS = (sys.executable, "-m", "blis_sim.cli")
PATIENCE_S = 120


@contextmanager
def running(
    folder: Path, *arguments: str, program: Sequence[str] = BLIS
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process that listens, with its address; it is stopped by SIGTERM."""
    with (folder / "messages.txt").open("a") as messages:
        process = fork_server.Popen(
            [*program, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            line = ""
            while "http://" not in line or "note" in line:
                line = process.stderr.readline()
                messages.write(line)
                if not line:
                    raise RuntimeError(f"blis {arguments[0]} has ended: {(folder / 'messages.txt').read_text()}")
            port = line.split("http://")[1].split(" ")[0].rsplit(":", 1)[1]
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()


def stopped(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """End a proxy; its summary."""
    process.terminate()
    found: dict[str, Any] = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    return found


def judged(folder: Path, name: str, *flags: str) -> dict[str, Any]:
    """Replay a recording and compare it with the simulation; the report."""
    _command(folder, "replay", f"{name}.yaml", "--results-path", "sim.json", *flags)
    judging = ("--sim-results", "sim.json", "--itl-data", f"{name}.itl.csv", "--report", "report.json")
    _command(folder, "calibrate", f"{name}.yaml", *judging)
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def _command(folder: Path, *arguments: str) -> None:
    done = fork_server.run([*BLIS, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"blis {' '.join(arguments)}: {done.stderr}")
