"""Interrupts commands at many instants of their start, and reports each that does not end quietly.

    python -m workshop.attack.interrupts [--instants 60] [--rounds 1] [--only WORD]

Every command is run once undisturbed, to learn how long its start takes, and then with a SIGINT at evenly spread
instants of that time. A run ends quietly when its exit code is 130 or 0, and when it writes no traceback. Messages of
Python itself on an interrupt before the first function of `blis` do not count. The exit code is 1 when a run does not.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from workshop.attack.setups import BLIS, SETUPS, STEPS, running

MOST_START_S, PATIENCE_S = 60.0, 20.0
QUIET_CODES = frozenset({0, 130, -signal.SIGINT})
LINES_SHOWN = 12
MAIN = "in _start"
"""Text in each traceback that comes through the entry point of `blis`."""
PYTHONS_START = "Failed to import the site module"


def commands(url: str) -> Mapping[str, tuple[str, ...]]:
    """Command lines of `blis`, of which `observe` sends requests to the server at `url`."""
    serve = ("serve", "qwen/qwen3-14b", "--port", "0", "--host", "127.0.0.1", *STEPS, "--total-kv-blocks", "200000")
    sent = ("--rate", "50", "--num-requests", "20", "--output-tokens", "4", "--output", "r")
    load = ("observe", "--server-url", url, "--model", "m", *sent)
    return {
        "serve": serve,
        "serve in processes": (*serve, "--api-processes", "2"),
        "observe": load,
        "observe in processes": (*load, "--processes", "2"),
        "run": ("run", "--model", "qwen/qwen3-14b", "--num-requests", "2000", "--rate", "20", "--trace-output", "s"),
    }


@contextmanager
def started(command: tuple[str, ...]) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """The process of a command in a folder of its own, and the file of its standard error; killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [*BLIS, *command], stdout=subprocess.DEVNULL, stderr=file, cwd=folder, start_new_session=True
            )
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()


def start_s(command: tuple[str, ...]) -> float:
    """Return the duration of a command's start without an interrupt: until it serves, or to its end."""
    with started(command) as (process, errors):
        began_s = time.monotonic()
        while process.poll() is None and time.monotonic() - began_s < MOST_START_S:
            if command[0] == "serve" and "serving" in errors.read_text(errors="replace"):
                break
            time.sleep(0.005)
        return time.monotonic() - began_s


def interrupted(command: tuple[str, ...], after_s: float) -> tuple[int | None, str]:
    """Interrupt a command. Returns its exit code, None when it had to be killed, and its standard error."""
    with started(command) as (process, errors):
        time.sleep(after_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # which a terminal sends to all processes of a command
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(PATIENCE_S)
        return code, errors.read_text(errors="replace")


def is_quiet(code: int | None, errors: str) -> bool:
    """Whether a run ended as an interrupted command should, or in Python's own start, before any function."""
    is_pythons = code == -signal.SIGINT or (code == 1 and PYTHONS_START in errors)
    if is_pythons and MAIN not in errors:
        return True
    return code in QUIET_CODES and "Traceback" not in errors and "Exception ignored" not in errors


def main() -> int:
    """Interrupt all commands at all instants. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1, help="how often each instant is tried")
    parser.add_argument("--only", default="", help="only commands with this in their name")
    parser.add_argument("--url", help="a server for `observe`; one is started otherwise")
    given = parser.parse_args()
    num_loud = 0
    with running(SETUPS[0]) as server:
        known = commands(given.url or f"http://{server.host}:{server.port}")
        for name, command in known.items():
            if given.only not in name:
                continue
            whole_s, codes = start_s(command), Counter[str]()
            for number in range(given.instants * given.rounds):
                after_s = whole_s * 1.05 * (number % given.instants) / given.instants
                code, errors = interrupted(command, after_s)
                codes[str(code)] += 1
                if not is_quiet(code, errors):
                    num_loud += 1
                    last = "\n    ".join(errors.splitlines()[-LINES_SHOWN:])
                    print(f"  {name} after {after_s * 1000:.0f} ms: exit code {code}\n    {last}")
            print(f"{name}: start of {whole_s:.2f} s, exit codes {dict(codes)}", flush=True)
    return 1 if num_loud else 0


if __name__ == "__main__":
    sys.exit(main())
