"""The scripts in `examples/journeys`: four people, and what each gets within a minute from two commands at most."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT

FOLDER = PROJECT / "examples" / "journeys"
GIVES = {
    "capacity": "cheapest: 1 x tp 1 on H100",
    "client": "2 passed",
    "gateway": "met: TTFT p99",
    "scheduling": "emptiest",
}
"""By script, a line that it prints."""


def test_every_script_is_listed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.sh")) == sorted(GIVES)


@pytest.mark.parametrize("name", GIVES)
def test_a_script_has_at_most_two_commands(name: str) -> None:
    """Lines of a file between `<<'WORD'` and `WORD` are no commands."""
    lines, end = [], ""
    for line in (FOLDER / f"{name}.sh").read_text().splitlines():
        if end:
            end = "" if line == end else end
        elif "<<'" in line:
            end = line.split("<<'")[1].rstrip("'")
        elif not line.startswith(("#", "set ", " ")):
            lines.append(line)
    assert 1 <= len(lines) <= 2, lines


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVES)
def test_a_script_gives_what_it_promises_in_an_empty_folder_without_a_network(name: str, tmp_path: Path) -> None:
    environment = {each: value for each, value in os.environ.items() if each in ("LANG", "HOME", "TMPDIR")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        ["sh", FOLDER / f"{name}.sh"],
        cwd=tmp_path,
        env={**environment, **nowhere, "no_proxy": "127.0.0.1,localhost"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, GIVES[name] in done.stdout) == (0, True), done.stdout + done.stderr
