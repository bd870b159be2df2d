"""Wheels and installations of this checkout, made here: without network, of the build requirements that are here."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def demand(*modules: str) -> None:
    """Skip where one of these is not installed; they are not imported, for setuptools replaces distutils then."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def pip(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Let pip build this checkout."""
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments, *options, "."],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def python(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder` with what is installed in `site` before everything else."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        # A folder on PYTHONPATH is searched, but files that extend the search path are not read in it.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(site / "blis_sim" / "packages")])},
        capture_output=True,
        text=True,
        check=False,
    )
