"""The plugin that fails an everyday test which costs too much CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.project import PROJECT

TESTS = """
import subprocess, sys, time
import pytest

WORK = "import time\\nwhile time.process_time() < 0.4: pass"

def work():
    until_s = time.process_time() + 0.4
    while time.process_time() < until_s:
        pass

@pytest.fixture(scope="module")
def shared():
    work()

def test_a_cheap_one(shared):
    pass

def test_a_costly_one():
    work()

RUNS = []

def test_one_that_is_costly_the_first_time():
    RUNS.append(1)
    if len(RUNS) == 1:
        work()

def test_one_that_waits():
    time.sleep(0.4)

def test_one_whose_process_is_costly():
    subprocess.run([sys.executable, "-c", WORK], check=True)

@pytest.mark.slow
def test_a_marked_one():
    work()
"""


@pytest.mark.slow
def test_everyday_tests_over_the_budget_fail_and_others_pass(tmp_path: Path) -> None:
    done = run_of_tests(tmp_path)
    failed = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert failed == ["test_a_costly_one", "test_one_whose_process_is_costly"], done.stdout + done.stderr
    assert "s of CPU, and a test without the mark `slow` has 0.15" in done.stdout


@pytest.mark.slow
def test_where_cpu_times_say_little_tests_over_the_budget_are_listed(tmp_path: Path) -> None:
    done = run_of_tests(tmp_path, "--cpu-budget-reports")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("over the CPU budget: ")]
    assert [line.split("::")[1].split()[0] for line in lines] == [
        "test_a_costly_one",
        "test_one_whose_process_is_costly",
    ]


@pytest.mark.slow
def test_the_nightly_run_has_no_budget(tmp_path: Path) -> None:
    done = run_of_tests(tmp_path, "--hypothesis-profile", "nightly")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU budget" not in done.stdout


def run_of_tests(tmp_path: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run `TESTS` in a process of their own, with a budget of 0.15 s."""
    (tmp_path / "test_costs.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: costly\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.cpu_budget", "-p", "no:cacheprovider", "-rE", "--tb=line"]
    options = ["--cpu-budget-s", "0.15", "--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini")]
    return subprocess.run(
        [*command, *options, *more, str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
