"""A distribution named `traces` and this one are installed side by side, in either order."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from itertools import permutations
from pathlib import Path

import pytest

from tests.architecture.project import PROJECT

FOREIGN = "FOREIGN = True\n"
COMMAND = ["run", "--model", "qwen/qwen3-14b", "--num-requests", "3", "--json", "--latency-model", "blackbox"]


def foreign_wheel(folder: Path) -> Path:
    """A distribution named `traces` with a package of that name that has nothing of ours."""
    path = folder / "traces-1.0-py3-none-any.whl"
    info = "traces-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("traces/__init__.py", FOREIGN)
        wheel.writestr("traces/utils.py", FOREIGN)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: traces\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "traces/__init__.py,,\ntraces/utils.py,,\n")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plain wheel of the project and that of the other distribution."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling")
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=PROJECT, env={**os.environ, "BLIS_COMPILE": "0"}, check=True, capture_output=True)
    (ours,) = folder.glob("*.whl")
    return ours, foreign_wheel(folder)


def environment(folder: Path) -> Path:
    """A virtual environment with the dependencies of this one but without this project. Returns its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    purelib = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=purelib))
    # A folder named in a .pth file brings its packages, but not what its own .pth files name.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def said(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the interpreter of an environment lies elsewhere on Windows")
@pytest.mark.parametrize("order", list(permutations((0, 1))), ids=["ours first", "ours last"])
def test_both_work_and_none_overwrites_a_file_of_the_other(
    order: tuple[int, int], wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    python = environment(tmp_path / "environment")
    for place in order:
        install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
        done = said(sys.executable, *install, wheels[place], folder=tmp_path)
        assert done.returncode == 0, done.stderr
    ran = said(python.with_name("blis"), *COMMAND, folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert '"completed_requests": 3' in ran.stdout
    asks = "import traces, traces.utils, mockserve; print(traces.FOREIGN, traces.utils.FOREIGN, mockserve.__file__)"
    theirs = said(python, "-c", asks, folder=tmp_path)
    assert theirs.stdout.startswith("True True ")
    assert str(Path("blis_sim", "packages", "mockserve")) in theirs.stdout
    assert said(python, "-c", "import blis_sim; print(blis_sim.__version__)", folder=tmp_path).returncode == 0
