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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workshop.attack.setups import BLIS, SETUPS, STEPS, running

MOST_START_S = 60.0
PATIENCE_S = 20.0
QUIET_CODES = frozenset({0, 130, -signal.SIGINT})
LINES_SHOWN = 12
MAIN = "in _start"
"""Text in each traceback that comes through the entry point of `blis`."""
PYTHONS_START = "Failed to import the site module"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of `blis`; `has_started` is text on its standard error that ends its start, empty for its end."""

    name: str
    arguments: Sequence[str]
    has_started: str = ""


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """End of a run: its exit code and its standard error; `code` is None for a run that had to be killed."""

    after_s: float
    code: int | None
    errors: str

    @property
    def is_quiet(self) -> bool:
        """Whether the run ended as an interrupted command should, or in Python's own start, before any function."""
        is_pythons = self.code == -signal.SIGINT or (self.code == 1 and PYTHONS_START in self.errors)
        if is_pythons and MAIN not in self.errors:
            return True
        return self.code in QUIET_CODES and "Traceback" not in self.errors and "Exception ignored" not in self.errors


def commands(url: str) -> tuple[Command, ...]:
    """The commands, of which `observe` sends requests to the server at `url`."""
    serve = ("serve", "qwen/qwen3-14b", "--port", "0", "--host", "127.0.0.1", *STEPS, "--total-kv-blocks", "200000")
    sent = ("--rate", "50", "--num-requests", "20", "--output-tokens", "4", "--output", "r")
    load = ("observe", "--server-url", url, "--model", "m", *sent)
    run = ("run", "--model", "qwen/qwen3-14b", "--num-requests", "2000", "--rate", "20", "--trace-output", "s")
    return (
        Command("serve", serve, "serving"),
        Command("serve in processes", (*serve, "--api-processes", "2"), "serving"),
        Command("observe", load),
        Command("observe in processes", (*load, "--processes", "2")),
        Command("run", run),
    )


def started(command: Command, folder: Path) -> "subprocess.Popen[bytes]":
    """The process of a command, with its standard error in a file."""
    with (folder / "errors").open("wb") as file:
        return subprocess.Popen(
            [BLIS, *command.arguments], stdout=subprocess.DEVNULL, stderr=file, cwd=folder, start_new_session=True
        )


def start_s(command: Command) -> float:
    """Return the duration of a command's start without an interrupt."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        process = started(command, Path(folder))
        while process.poll() is None and time.monotonic() - began_s < MOST_START_S:
            if command.has_started and command.has_started in (Path(folder) / "errors").read_text(errors="replace"):
                break
            time.sleep(0.005)
        took_s = time.monotonic() - began_s
        process.kill()
        process.wait()
        return took_s


def interrupted(command: Command, after_s: float) -> InterruptedRun:
    """Run a command and interrupt it."""
    with tempfile.TemporaryDirectory() as folder:
        process = started(command, Path(folder))
        time.sleep(after_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # which a terminal sends to all processes of a command
        try:
            code: int | None = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
        return InterruptedRun(after_s, code, (Path(folder) / "errors").read_text(errors="replace"))


def run_interrupted(command: Command, instants: int, rounds: int) -> Iterator[InterruptedRun]:
    """Interrupt a command at all instants, print the exit codes, and yield the runs that did not end quietly."""
    whole_s, codes = start_s(command), Counter[str]()
    for number in range(instants * rounds):
        found = interrupted(command, whole_s * 1.05 * (number % instants) / instants)
        codes[str(found.code)] += 1
        if not found.is_quiet:
            yield found
    print(f"{command.name}: start of {whole_s:.2f} s, exit codes {dict(codes)}", flush=True)


def main() -> int:
    """Interrupt all commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1, help="how often each instant is tried")
    parser.add_argument("--only", default="", help="only commands with this in their name")
    parser.add_argument("--url", help="a server for `observe`; one is started otherwise")
    given = parser.parse_args()
    num_loud = 0
    with running(SETUPS[0]) as server:
        for command in commands(given.url or f"http://{server.host}:{server.port}"):
            for each in run_interrupted(command, given.instants, given.rounds) if given.only in command.name else ():
                num_loud += 1
                last = "\n    ".join(each.errors.splitlines()[-LINES_SHOWN:])
                print(f"  {command.name} after {each.after_s * 1000:.0f} ms: exit code {each.code}\n    {last}")
    return 1 if num_loud else 0


if __name__ == "__main__":
    sys.exit(main())
