"""The documentation as a reader meets it: pages, the commands in their fences, and the tests that execute them."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
README = PROJECT / "README.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("*.md"))]

FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"<!-- executed by: (?P<file>\S+)::(?P<test>\w+) -->")
PROMPT = "$ "


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Execute one of the project's scripts, named by its path in the project."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page, and its output according to the page; `...` stands for anything."""

    text: str
    expected: tuple[str, ...]

    @property
    def is_repeatable(self) -> bool:
        """Whether the command prints equal figures on every machine: it simulates, and reads no recording."""
        return (
            re.match(r"blis (run|sweep --model|compare|plan --model|bench (throughput|latency|tune)) ", self.text)
            is not None
        )


@dataclass(frozen=True, slots=True)
class Fence:
    """The commands of one fence. `executed_by` names the test that runs them, when it is not the one for all pages."""

    page: Path
    commands: tuple[Command, ...]
    executed_by: tuple[str, str] | None


def fences(page: Path) -> list[Fence]:
    """Every fence of a page that holds commands."""
    found = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["language"] == "console":
            marker = ELSEWHERE.fullmatch(match["before"])
            executed_by = (marker["file"], marker["test"]) if marker else None
            found.append(Fence(page, commands_of(match["body"]), executed_by))
    return found


def commands_of(body: str) -> tuple[Command, ...]:
    """The commands of a fence: lines after a prompt, each followed by what it prints."""
    commands: list[Command] = []
    for line in body.splitlines():
        if line.startswith(PROMPT):
            commands.append(Command(line.removeprefix(PROMPT), ()))
        else:
            last = commands.pop()
            commands.append(Command(last.text, (*last.expected, line)))
    return tuple(commands)


def languages(page: Path) -> set[str]:
    """Return the files that the fences of a page show."""
    return {match["language"] for match in FENCE.finditer(page.read_text(encoding="utf-8"))}
