"""Wheels and installations of this checkout, made here: without network, of the build requirements that are here."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.architecture.project import PACKAGES, PROJECT

BUILDS = PROJECT / ".compiled"
"""Installations with a compiled engine, each in a folder that the hash of its sources names; git ignores them."""
OPT_LEVEL = os.environ.get("MYPYC_OPT_LEVEL", "0")
"""Without optimisation C compiles in a fifth of the time and gives the same bytes; mypyc's assertions are checked."""
COMPILERS = ("hatchling", "mypyc", "pip", "setuptools")


def demand(*modules: str) -> None:
    """Skip where one of these is not installed; they are not imported, for setuptools replaces distutils then."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def demand_compiler() -> None:
    """Skip where nothing can be compiled."""
    demand(*COMPILERS)
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    if not compiler or shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"there is no C compiler {compiler}")


def compiled_installation() -> Path:
    """Return the folder of an installation of this checkout with a compiled engine; compile unless it is there.

    Processes that ask at once wait for the first. Installations of other sources are removed. Raises RuntimeError with
    the words of pip when the engine does not compile.
    """
    BUILDS.mkdir(exist_ok=True)
    with (BUILDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        site = BUILDS / sources_digest()
        if site.is_dir():
            return site
        for other in (path for path in BUILDS.iterdir() if path.is_dir()):
            shutil.rmtree(other)
        unfinished = site.with_suffix(".unfinished")
        done = pip("install", "--quiet", "--target", str(unfinished), BLIS_COMPILE="1", MYPYC_OPT_LEVEL=OPT_LEVEL)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        unfinished.rename(site)
        return site


def sources_digest() -> str:
    """Digest of every file that is installed, of how it is built, and of the versions of Python and mypy."""
    digest = hashlib.sha256(f"{sys.version} {version('mypy')} {OPT_LEVEL}".encode())
    files = [PROJECT / "pyproject.toml", PROJECT / "hatch_build.py"]
    for package in PACKAGES:
        files += (path for path in (PROJECT / package).rglob("*") if path.is_file() and path.suffix != ".pyc")
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(PROJECT)} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


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


if __name__ == "__main__":
    sys.stdout.write(f"{compiled_installation()}\n")
