"""The winner of a plan, served from its own command line and observed."""

import json
import subprocess
import sys

import pytest

from tests.architecture.project import PROJECT
from tests.patience import attempts


@pytest.mark.slow
def test_a_planned_deployment_that_is_served_has_the_figures_of_the_plan() -> None:
    """At a tenth of the speed, so that what the machine adds counts a tenth."""
    words = [
        "-m",
        "workshop.plans_served",
        "--only",
        "2",
        "--speed",
        "0.1",
        "--requests",
        "12",
        "--attempts",
        "1",
        "--json",
    ]
    seen: list[str] = []
    for _ in attempts(seen):
        done = subprocess.run([sys.executable, *words], cwd=PROJECT, capture_output=True, text=True, check=False)
        seen.append(done.stdout or done.stderr)
        row = json.loads(done.stdout or "{}")
        if done.returncode == 0 and abs(row["itl_mean_ms"]) < row["stated"]:
            return
