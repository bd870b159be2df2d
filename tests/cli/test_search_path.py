"""Folders of the user with the names of packages of `blis` do not hide these."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import blis_sim
from blis_sim.cli import search_path
from blis_sim.cli.commands import COMMANDS, CommandRow
from blis_sim.cli.search_path import PACKAGES, move_foreign_folders_last
from tests.architecture.project import PACKAGES as OF_THE_PROJECT
from tests.cli.conftest import Said

OURS = str(Path(blis_sim.__file__).parents[1])
"""The folder of the packages that are tested, which may be installed ones."""
COMMAND = ["run", "--latency-model", "blackbox", "--model", "qwen/qwen3-14b", "--num-requests", "3", "--json"]


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Make a folder with a package of each of our names, except the one that identifies `blis`."""
    for name in PACKAGES:
        if name != "blis_sim":
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('{name} of another distribution')\n")
    return tmp_path


def ran(folder: Path, search: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_module_runs_in_a_folder_with_packages_of_our_names(users: Path) -> None:
    done = ran(users, OURS, "-m", "blis_sim.cli", *COMMAND)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_runs_with_packages_of_our_names_on_the_search_path(users: Path) -> None:
    script = users / "blis"
    script.write_text("from blis_sim.cli.main import main\n\nmain()\n")
    done = ran(users, f"{users}{os.pathsep}{OURS}", str(script), *COMMAND)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_processes_of_a_sweep_find_ours_as_well(users: Path) -> None:
    done = ran(users, OURS, "-m", "blis_sim.cli", "sweep", *COMMAND, "--vary", "seed=1,2", "--processes", "2")
    assert (done.returncode, (users / "sweep.csv").read_text().count("\n")) == (0, 3), done.stderr


def test_all_packages_are_known() -> None:
    assert list(PACKAGES) == OF_THE_PROJECT


@pytest.mark.parametrize(
    ("made", "hides"),
    [("traces/__init__.py", True), ("traces.py", True), ("traces/a.csv", False), ("a.py", False)],
)
def test_only_folders_that_hide_our_packages_go_last(made: str, hides: bool, tmp_path: Path) -> None:
    (tmp_path / made).parent.mkdir(exist_ok=True)
    (tmp_path / made).write_text("")
    path = [str(tmp_path), "/first", OURS, "/last"]
    move_foreign_folders_last(path)
    here = [str(tmp_path)]
    assert path == ([] if hides else here) + ["/first", OURS, "/last"] + (here if hides else [])


def test_a_search_path_without_ours_stays_as_it_is(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_path, "_OWN_FOLDER", "/nowhere")
    path = [str(users), OURS]
    move_foreign_folders_last(path)
    assert path == [str(users), OURS]


def test_a_module_of_ours_that_is_missing_is_said_in_one_line(
    blis: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "toy", CommandRow("Do nothing.", "traces.nonsense", "Options"))
    said = f"No module named 'traces.nonsense': traces is {OURS}/traces/__init__.py, which is not that of blis or not "
    assert blis("toy") == (
        2,
        "",
        f"blis toy: error: {said}all of it; install it in a virtual environment of its own\n",
    )


def test_a_missing_name_in_a_foreign_module_is_a_mistake_of_the_program(
    blis: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "toy", CommandRow("Do nothing.", "no_such_library", "Options"))
    with pytest.raises(ModuleNotFoundError):
        blis("toy")
