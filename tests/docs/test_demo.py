"""The demo does the main job, here with a few requests."""

from pathlib import Path

import pytest

from tests.docs.pages import run_script
from tests.patience import attempts


@pytest.mark.slow
@pytest.mark.parametrize("num_instances", ["1", "3"])
def test_the_demo_serves_observes_replays_and_grades(tmp_path: Path, num_instances: str) -> None:
    for number, _ in enumerate(attempts()):
        grades = grades_of_demo(tmp_path / f"{number}", num_instances)
        if grades["E2E"] == "excellent":
            break


def grades_of_demo(folder: Path, num_instances: str) -> dict[str, str]:
    """Return the grade of each kind of latency that the demo prints, and check its commands and files."""
    load = ("--num-requests", "24", "--rate", "8", "--num-instances", num_instances)
    done = run_script("examples/demo.py", *load, "--output", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    commands = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("$ blis ")]
    assert commands == ["serve", "observe", "replay", "calibrate"]
    lines = [line.split() for line in done.stdout.splitlines()]
    after_heading = lines[lines.index(["prediction", "requests", "MAPE", "r", "grade", "bias"]) + 1 :]
    grades = {line[0]: line[4] for line in after_heading[:3]}
    assert list(grades) == ["TTFT", "E2E", "ITL"]
    assert set(grades.values()) <= {"excellent", "good", "fair", "poor"}
    assert {path.name for path in folder.iterdir()} == {
        "trace.yaml", "trace.csv", "trace.itl.csv", "trace.server.yaml",
        "observed.json", "metrics.json", "results.json", "report.json",
    }  # fmt: skip
    return grades
