"""The benchmark of start-up, `python -m workshop.startup`."""

import subprocess
import sys
from pathlib import Path

import pytest

from workshop.startup import Cost, ratios, row

PROJECT = Path(__file__).resolve().parents[2]


def test_ratios_are_medians_of_pairs_and_not_ratios_of_medians() -> None:
    pairs = [(Cost(2.0, 30.0), Cost(1.0, 20.0)), (Cost(3.0, 30.0), Cost(4.0, 20.0)), (Cost(9.0, 30.0), Cost(3.0, 20.0))]
    found = ratios(pairs)
    assert (found.ours, found.base) == (Cost(3.0, 30.0), Cost(3.0, 20.0))
    assert (found.cpu, found.memory) == (2.0, 1.5)
    assert row("help", found) == "| help | 3000 | 3000 | 2.00 | 30.0 | 20.0 | 1.50 |"


@pytest.mark.slow
def test_compares_a_checkout_with_itself() -> None:
    command = [sys.executable, "workshop/startup.py", str(PROJECT), str(PROJECT), "--pairs", "1"]
    printed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed[2:]]
    assert [cells[0] for cells in rows] == ["help", "replay", "serve"]
    assert all(10 < float(cells[4]) < 1000 and 0.8 < float(cells[6]) < 1.25 for cells in rows)


def test_names_the_command_that_fails(tmp_path: Path) -> None:
    (tmp_path / "blis_sim").mkdir()
    (tmp_path / "blis_sim" / "__init__.py").touch()
    command = [sys.executable, "workshop/startup.py", str(PROJECT), str(tmp_path), "--case", "help", "--pairs", "1"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("-m blis_sim.cli --help")
