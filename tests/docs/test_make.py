"""The targets of the Makefile, without their cost: `make -n` prints the commands of each."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT


def steps_of(command: str, venv: Path) -> list[str]:
    """Return the commands that make would execute on a machine where `venv` does not exist yet."""
    program, *rest = command.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [program, "-n", f"VENV={venv}", *rest], cwd=PROJECT, capture_output=True, text=True, check=True, env=environment
    )
    return [line for line in done.stdout.splitlines() if line.startswith((str(venv), "python"))]


@pytest.mark.parametrize(
    ("command", "extras", "last"),
    [
        ("make demo", "-e .", "python examples/demo.py"),
        ("make demo-cluster", "-e .", "python examples/demo.py --num-instances 4"),
        ("make test", '-e ".[test]"', "python -m pytest"),
        ("make docs", '-e ".[test]"', "python docs/pictures.py"),
    ],
)
def test_make_sets_up_and_runs_the_demo_and_the_tests(command: str, extras: str, last: str, tmp_path: Path) -> None:
    steps = steps_of(command, tmp_path / "venv")
    assert steps[0] == f"python3 -m venv {tmp_path}/venv"
    assert steps[1].startswith(f"{tmp_path}/venv/bin/python -m pip install ")
    assert steps[1].endswith(extras)
    assert steps[-1].startswith(f"{tmp_path}/venv/bin/{last}")


def test_every_target_runs_files_that_exist(tmp_path: Path) -> None:
    (targets,) = (line for line in (PROJECT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    for target in targets.split()[1:]:
        for step in steps_of(f"make {target}", tmp_path / "venv"):
            files = [PROJECT / word for word in step.split() if word.endswith(".py")]
            assert [file for file in files if not file.is_file()] == [], f"make {target}"
