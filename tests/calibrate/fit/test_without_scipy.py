"""Learning needs the library of an extra, which `pip install .` leaves out: its name is the error."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.small_traces import row, written

WITHOUT_SCIPY = """
import importlib.machinery, sys

usual = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name == "scipy" else usual(name, path, target)

importlib.machinery.PathFinder.find_spec = find_spec
from blis_sim.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
SERVER = ("--model", "qwen3-14b", "--hardware", "H100", "--tp", "1")


def fit_without_scipy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_SCIPY, "fit", *arguments, *SERVER]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_learning_without_scipy_is_one_line_that_names_the_extra(flags: tuple[str, ...], tmp_path: Path) -> None:
    done = fit_without_scipy(tmp_path, str(written(tmp_path, [row(0)])), *flags)
    assert done.stderr == "blis fit: error: blis fit needs scipy: pip install 'blis-mockserve[fit]'\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_a_load_to_record_is_designed_without_scipy(tmp_path: Path) -> None:
    done = fit_without_scipy(tmp_path, "--design", "load.yaml")
    assert (done.returncode, done.stderr) == (0, "blis fit: wrote load.yaml\n")
    assert (tmp_path / "load.yaml").stat().st_size > 100
