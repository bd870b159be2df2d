"""The page on the recording proxy, as its reader goes through it."""

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server
from tests.docs.pages import PROJECT, Command, fences
from tests.docs.terminal import Terminal, missing_lines
from tests.patience import PATIENCE_S
from tests.ports import reserved_port
from traces.trace_v2 import read_rows


def pass_through(terminal: Terminal, folder: Path, port: int, proxying: Command, asking: tuple[Command, ...]) -> None:
    """Start the proxy, execute what clients send through it, and end it."""
    text = proxying.text.replace("localhost:8000", f"127.0.0.1:{terminal.port}").replace("8080", str(port))
    command = [sys.executable, "-m", "blis_sim.cli", *shlex.split(text)[1:]]
    proxy = fork_server.Popen(command, cwd=folder, env=terminal.environment, stderr=subprocess.PIPE, text=True)
    try:
        assert proxy.stderr is not None
        line = proxy.stderr.readline().replace(f"127.0.0.1:{terminal.port}", "localhost:8000")
        line = line.replace(str(port), "8080")
        assert missing_lines(proxying, line) == []
        for each in asking:
            printed = terminal.execute(each, {"localhost:8080": f"127.0.0.1:{port}"})
            assert missing_lines(each, printed) == [], printed
        proxy.send_signal(signal.SIGINT)
        assert proxy.wait(PATIENCE_S) == 0
    finally:
        proxy.kill()
        proxy.communicate()


@pytest.mark.slow
def test_the_commands_of_the_page_print_the_lines_it_shows(tmp_path: Path) -> None:
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"the commands need {program}")
    starting, clients, reading, _ = fences(PROJECT / "docs" / "proxy.md")
    terminal = Terminal(tmp_path)
    with reserved_port() as port:
        serving, proxying = starting.commands
        assert missing_lines(serving, terminal.execute(serving)) == []
        try:
            pass_through(terminal, tmp_path, port, proxying, clients.commands)
        finally:
            terminal.close()
    printed = ""
    for each in reading.commands:
        printed = terminal.execute(each)
        assert missing_lines(each, printed) == [], printed
    assert "excellent" in printed


@pytest.mark.slow
def test_long_recordings_are_in_parts_without_what_was_redacted(tmp_path: Path) -> None:
    """The page is "proxy.md"."""
    proxying, asking, *reading = fences(PROJECT / "docs" / "proxy.md")[-1].commands
    terminal = Terminal(tmp_path)
    try:
        terminal.execute(Command("blis serve qwen/qwen3-14b", ()))
        with reserved_port() as port:
            pass_through(terminal, tmp_path, port, proxying, (asking,))
        for each in reading:
            assert missing_lines(each, terminal.execute(each)) == []
    finally:
        terminal.close()
    assert len(read_rows(tmp_path / "day-0001.csv")) == 1
