"""How the slow tests are shared among workers."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.project import PROJECT
from tests.worker_shares import LONGEST, share_of

GROUPED = """
import os, time
from pathlib import Path
import pytest

pytestmark = pytest.mark.xdist_group("one")

@pytest.mark.parametrize("number", range(4))
def test_of_a_group(number):
    Path(f"{number}.%s").write_text(str(os.getpid()))
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("nodeid", "share"),
    [
        ("tests/wings/ray/test_on_ray.py::test_conversations_are_refused", "ray"),
        ("tests/wings/ray/test_ray_pool.py::test_a_task_that_always_dies_is_one_error", "ray"),
        ("tests/docs/test_commands.py::test_a[page]", str(PROJECT / "tests/docs/test_commands.py")),
        ("tests/docs/test_conclusions.py::test_a[1]", "tests/docs/test_conclusions.py::test_a[1]"),
    ],
)
def test_tests_stay_with_those_that_need_the_same(nodeid: str, share: str) -> None:
    assert share_of(nodeid, PROJECT) == share


@pytest.mark.parametrize("file", LONGEST)
def test_what_begins_first_is_there_and_slow(file: str) -> None:
    assert "mark.slow" in (PROJECT / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_one_worker_runs_all_tests_of_a_group(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(GROUPED % name)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group: together\n")
    (tmp_path / "test_c.py").write_text(GROUPED.replace('"one"', '"other"') % "c")
    command = [sys.executable, "-m", "pytest", "-p", "tests.worker_shares", "-p", "no:cacheprovider"]
    options = ["-n", "2", "--dist", "loadgroup", "--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini")]
    environment = {"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, *options, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = defaultdict[str, set[str]](set)
    for name in ("a", "b", "c"):
        files = [tmp_path / f"{number}.{name}" for number in range(4)]
        workers["c" if name == "c" else "ab"] |= {file.read_text() for file in files}
    assert {key: len(found) for key, found in workers.items()} == {"ab": 1, "c": 1}
    assert workers["ab"] != workers["c"]
