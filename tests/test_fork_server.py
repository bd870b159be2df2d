"""Processes that are forked behave as those of `subprocess`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

SAYS = """
import os, sys
print(sys.argv, os.getcwd(), os.environ.get("SAID"), __name__, sys.stdin.read(), os.getpgid(0) == os.getpid())
print("wrong", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("popen", [subprocess.Popen, fork_server.Popen])
@pytest.mark.parametrize("starts_session", [False, True])
def test_words_folder_environment_files_session_and_status_are_those_that_were_asked_for(
    popen: Callable[..., Any], starts_session: bool, tmp_path: Path
) -> None:
    pipe = subprocess.PIPE
    with popen(
        [sys.executable, "-c", SAYS, "a b"], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path,
        env={**os.environ, "SAID": "x"}, start_new_session=starts_session,
    ) as process:  # fmt: skip
        printed, complaints = process.communicate("in")
    assert printed == f"['-c', 'a b'] {tmp_path} x __main__ in {starts_session}\n"
    assert (complaints, process.returncode) == ("wrong\n", 7)


@pytest.mark.parametrize("popen", [subprocess.Popen, fork_server.Popen])
def test_one_that_is_killed_ends_by_the_signal_and_one_that_goes_on_has_no_status(popen: Callable[..., Any]) -> None:
    with popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.kill()
        assert (process.wait(), process.poll()) == (-signal.SIGKILL, -signal.SIGKILL)


def test_a_forked_process_forks_others() -> None:
    code = "import sys; from tests import fork_server; print(fork_server.run([sys.executable, '-c', '3/0']).returncode)"
    environment = {**os.environ, "PYTHONPATH": str(fork_server.PROJECT)}
    done = fork_server.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, "ZeroDivisionError" in done.stderr) == ("1\n", True)
