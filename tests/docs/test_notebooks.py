"""The notebooks run, each as a program of its own, with fewer requests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT

NOTEBOOKS = sorted((PROJECT / "examples").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.name)
def test_a_notebook_runs_from_its_first_cell_to_its_last(notebook: Path, tmp_path: Path) -> None:
    code = ["".join(each["source"]) for each in cells(notebook) if each["cell_type"] == "code"]  # type: ignore[arg-type]
    fewer = re.sub(r"num_requests=\d+", "num_requests=30", "\n\n".join(code))
    (tmp_path / "notebook.py").write_text(fewer, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.name)
def test_a_notebook_has_no_results_in_it(notebook: Path) -> None:
    assert [each for each in cells(notebook) if each.get("outputs") or each.get("execution_count")] == []
    assert "".join(cells(notebook)[0]["source"]).startswith("# ")  # type: ignore[arg-type]
