"""`blis vidur --compat vidur` gives the batches and the times of Vidur's own runs."""

import json
from pathlib import Path

import pytest

from tests.reference.simulators import read_text, share_of
from tests.wings.vidur.golden_use import USE
from tests.wings.vidur.goldens import LARGEST, NAMES, rows_of, simulated


def differences(ours: list[dict[str, str]], theirs: list[dict[str, str]]) -> list[str]:
    """Name each cell that differs by more than a millionth, or by more than a picosecond where it is nearly 0."""
    assert list(ours[0]) == list(theirs[0])
    found = [f"{len(ours)} rows, not {len(theirs)}"] if len(ours) != len(theirs) else []
    for place, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        for name, text in their.items():
            if our[name] == text:
                continue
            if not text or not our[name]:
                found.append(f"row {place} {name}: {our[name]!r}, not {text!r}")
            elif abs(float(our[name]) - float(text)) > max(1e-6 * abs(float(text)), 1e-12):
                found.append(f"row {place} {name}: {our[name]}, not {text}")
    return found


def share_differences(ours: Path, theirs: Path) -> list[str]:
    """Compare a written file with the share of a file that the tables hold: some rows, and the sums of all."""
    our, their = share_of(rows_of(ours)), json.loads(read_text(theirs))
    assert our["num_rows"] == their["num_rows"]
    return [*differences(our["rows"], their["rows"]), *differences([our["sums"]], [their["sums"]])]


LARGE = (
    *("70b_sarathi_conv200_pp2", "7ba_sarathi_conv1000_r2_lor", "7ba_sarathi_conv1000_r2_random"),
    *("7ba_sarathi_conv1000_r2_rr", "7ba_sarathi_pp2", "7bh_sarathi_conv1000"),
)
"""Runs that take more than a second."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in NAMES]
)
def test_batches_and_times_are_those_of_vidur(name: str, reference: Path, tmp_path: Path) -> None:
    golden = reference / "golden" / "vidur" / name
    folder = simulated(golden, tmp_path)
    theirs = sorted(golden.glob("*_metrics.csv*"))
    assert theirs
    for file in theirs:
        assert share_differences(folder / file.name.removesuffix(".gz"), file)[:3] == []
    assert use_in(folder) == {key: pytest.approx(values, rel=1e-6) for key, values in USE[name].items()}


def use_in(folder: Path) -> dict[str, tuple[float, float]]:
    """Return the largest and the mean value of each figure on the use of replicas."""
    found = {}
    for file in (folder / "plots").glob("replica_*.json"):
        figures = json.loads(file.read_text())
        found[file.stem] = (figures[f"{file.stem}_max"], figures[f"{file.stem}_weighted_mean"])
    return found


@pytest.mark.slow
def test_a_million_batches_are_those_of_vidur(shared: Path, tmp_path: Path) -> None:
    golden = shared / "golden" / "vidur" / LARGEST
    folder = simulated(golden, tmp_path)
    requests = differences(rows_of(folder / "request_metrics.csv"), rows_of(golden / "request_metrics.csv"))
    assert requests[:3] == []
