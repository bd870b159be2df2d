"""Processes that a run starts find our modules, whatever the working folder holds."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from observe.event_loop import command_of


@pytest.fixture
def folder_with_an_observe_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "observe"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('not what was meant')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder_with_an_observe_of_its_own")
def test_processes_that_send_are_ours(observe: Callable[..., Any]) -> None:
    run = observe(model="ok-5-1", rate=100.0, num_requests=10, prompt_tokens=20, output_tokens=4, processes=2)
    assert (run.code, run.summary["completed"]) == (0, 10)


@pytest.mark.usefixtures("folder_with_an_observe_of_its_own")
def test_the_process_that_draws_is_ours() -> None:
    done = subprocess.run(command_of("observe.live_screen"), input=b"", capture_output=True, check=False)
    assert (done.returncode, b"not what was meant" in done.stderr) == (0, False)


def test_a_module_is_run_as_python_would_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown.py").write_text("import sys\nprint(__name__, len(sys.argv), sys.path[0])\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(command_of("shown"), capture_output=True, text=True, check=True)
    assert done.stdout == f"__main__ 1 {tmp_path}\n"
