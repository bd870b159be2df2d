"""A server under load while instances come and go, as `python -m workshop.attack.soak` lets it run for longer."""

import subprocess
import sys

import pytest

from tests.architecture.project import PROJECT
from workshop.attack.soak import Measured, judged


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_load_leaves_flat_memory_and_nothing_open() -> None:
    command = [sys.executable, "-m", "workshop.attack.soak", "--seconds", "12", "--seed", "1", "--clients", "8"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0 things wrong after 12 s"]), (
        done.stdout + done.stderr
    )


def measured(memory_mib: list[float], page_bytes: int = 60_000) -> Measured:
    found = Measured(memory_mib=memory_mib, page_bytes=[page_bytes], page_s=[0.01], num_instances=[1])
    found.replies["200"] = found.changes["kill 200"] = 1
    return found


def test_memory_that_grows_is_found() -> None:
    (wrong,) = judged(measured([100 + 2 * second for second in range(60)]), [], [])
    assert wrong.startswith("memory grew by ")
    assert judged(measured([100 + min(second, 20) for second in range(60)]), [], []) == []


def test_open_or_logged_leftovers_are_found() -> None:
    assert judged(measured([100] * 9), ["a request"], ["a traceback"]) == [
        "left over: a request",
        "logged: a traceback",
    ]


def test_a_metrics_page_of_instances_that_are_gone_is_found() -> None:
    (wrong,) = judged(measured([100] * 9, page_bytes=900_000), [], [])
    assert wrong == "a metrics page of 900,000 bytes with 1 instances"
