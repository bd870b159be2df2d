"""A package installed by `pip install .` works away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT


@pytest.mark.slow
def test_the_package_that_pip_installs_runs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the package is built with hatchling")
    pytest.importorskip("pip", reason="pip is not installed here")
    site = tmp_path / "site"
    # As `pip install .`, but with the dependencies and the build backend that are already here: no network. What a C
    # compiler makes of it is tested in tests/compiled/.
    plain = {**os.environ, "BLIS_COMPILE": "0"}
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "."]
    subprocess.run([sys.executable, *command], cwd=PROJECT, env=plain, check=True, capture_output=True)
    (tmp_path / "tiny.yaml").write_text("trace_version: 3\n")
    (tmp_path / "tiny.csv").write_text("request_id,input_tokens,output_tokens,arrival_time_us\n0,5,2,0\n")
    done = subprocess.run(
        [
            sys.executable,
            site / "bin" / "blis",
            "replay",
            "tiny.yaml",
            "--engine",
            "blis",
            "--model",
            "qwen/qwen3-14b",
            "--json",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert '"completed_requests": 1' in done.stdout
    assert (site / "blis_sim" / "engine" / "core.py").is_file()
