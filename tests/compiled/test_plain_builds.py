"""Where the engine is not compiled it is plain Python, and the build reports the reason."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.project import PROJECT
from tests.compiled.builds import demand, pip


@pytest.fixture(autouse=True)
def _requirements() -> None:
    demand("hatchling", "pip", "setuptools")


def assert_is_plain(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".pyd"))] == []


@pytest.mark.slow
def test_without_a_c_compiler_the_wheel_is_plain_python(tmp_path: Path) -> None:
    done = pip("wheel", "--verbose", "--wheel-dir", str(tmp_path), CC="/bin/false", BLIS_COMPILE="")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in (done.stdout + done.stderr).splitlines() if "The engine stays plain Python" in line)
    assert "/bin/false" in line
    assert_is_plain(tmp_path)


@pytest.mark.slow
def test_a_demanded_compiled_engine_is_built_or_an_error(tmp_path: Path) -> None:
    done = pip("wheel", "--wheel-dir", str(tmp_path), CC="/bin/false", BLIS_COMPILE="1")
    assert done.returncode != 0
    assert "CannotCompileError: " in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_other_values_of_the_variable_are_refused(tmp_path: Path) -> None:
    done = pip("wheel", "--wheel-dir", str(tmp_path), BLIS_COMPILE="yes")
    assert "BLIS_COMPILE must be 0 or 1, got 'yes'" in done.stdout + done.stderr
    assert done.returncode != 0


def test_an_editable_installation_is_plain_python_whatever_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand("editables")
    monkeypatch.setenv("BLIS_COMPILE", "1")
    hatchling("wheel:editable", tmp_path)
    assert_is_plain(tmp_path)


def test_the_checkout_has_no_compiled_files_afterwards() -> None:
    assert [path for path in PROJECT.glob("blis_sim/engine/**/*") if path.suffix in (".so", ".pyd", ".c")] == []


def hatchling(target: str, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
