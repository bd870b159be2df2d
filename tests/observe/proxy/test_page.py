"""The page on the recording proxy, as its reader goes through it."""

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT, fences
from tests.docs.terminal import Terminal, missing_lines
from tests.patience import PATIENCE_S
from tests.ports import reserved_port


def test_the_commands_of_the_page_print_the_lines_it_shows(tmp_path: Path) -> None:
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"the commands need {program}")
    starting, clients, reading = fences(PROJECT / "docs" / "proxy.md")
    terminal = Terminal(tmp_path)
    with reserved_port() as port:
        serving, proxying = starting.commands
        assert missing_lines(serving, terminal.execute(serving)) == []
        text = proxying.text.replace("localhost:8000", f"127.0.0.1:{terminal.port}").replace("8080", str(port))
        command = [sys.executable, "-m", "blis_sim.cli", *shlex.split(text)[1:]]
        proxy = subprocess.Popen(command, cwd=tmp_path, env=terminal.environment, stderr=subprocess.PIPE, text=True)
        try:
            assert proxy.stderr is not None
            line = proxy.stderr.readline().replace(f"127.0.0.1:{terminal.port}", "localhost:8000")
            line = line.replace(str(port), "8080")
            assert missing_lines(proxying, line) == []
            for each in clients.commands:
                printed = terminal.execute(each, {"localhost:8080": f"127.0.0.1:{port}"})
                assert missing_lines(each, printed) == [], printed
            proxy.send_signal(signal.SIGINT)
            assert proxy.wait(PATIENCE_S) == 0
        finally:
            proxy.kill()
            proxy.communicate()
            terminal.close()
    printed = ""
    for each in reading.commands:
        printed = terminal.execute(each)
        assert missing_lines(each, printed) == [], printed
    assert "excellent" in printed
