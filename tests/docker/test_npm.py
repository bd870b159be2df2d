"""The package for tests of JavaScript clients, run by Node.js."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.project import pyproject
from tests.docker.files import PROJECT

PACKAGE = PROJECT / "deploy" / "npm"


def test_the_package_has_the_version_of_the_project() -> None:
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == pyproject()["project"]["version"]
    assert all((PACKAGE / name).exists() for name in package["files"])


@pytest.mark.slow
def test_the_calls_of_the_package_work(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed here")
    program = tmp_path / "blis"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m blis_sim.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "BLIS_PROGRAM": str(program), "PYTHONPATH": str(PROJECT)}
    words = [node, "--test", str(PACKAGE)]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (done.returncode, "pass 5" in done.stdout) == (0, True), done.stdout + done.stderr
