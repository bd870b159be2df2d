"""`blis vidur --compat simai` gives the batches and the times of SimAI's own runs."""

from pathlib import Path

import pytest

from tests.wings.vidur.goldens import rows_of
from tests.wings.vidur.simai_goldens import POOLS, SCENARIOS, scenario_arguments, simulated, simulated_pools
from tests.wings.vidur.test_goldens import differences, share_differences

FILES = ("request_metrics.csv", "batch_metrics.csv")


@pytest.mark.parametrize("name", SCENARIOS)
def test_batches_and_times_are_those_of_simai(name: str, reference: Path, tmp_path: Path) -> None:
    golden = reference / "golden" / "vidur" / name
    folder = simulated(scenario_arguments(golden), f"aicb:{reference / 'golden' / 'vidur-data' / 'aicb'}", tmp_path)
    for file in FILES:
        assert differences(rows_of(folder / file), rows_of(golden / file))[:3] == []


def test_batches_and_times_of_separate_pools_are_those_of_simai(reference: Path, tmp_path: Path) -> None:
    vidur_folder = reference / "golden" / "vidur"
    folder = simulated_pools(vidur_folder, tmp_path)
    theirs = sorted((vidur_folder / POOLS).glob("*_metrics.csv*"))
    assert len(theirs) == len(FILES)
    for file in theirs:
        assert share_differences(folder / file.name.removesuffix(".gz"), file)[:3] == []


def test_times_in_right_units_are_a_thousand_times_longer(reference: Path, tmp_path: Path) -> None:
    """Decodes exchange over NVLink, prompts count as prompts, and parts that layers lack take no time."""
    golden = reference / "golden" / "vidur" / SCENARIOS[3]
    source = f"aicb:{reference / 'golden' / 'vidur-data' / 'aicb'}"
    folder = simulated(scenario_arguments(golden), source, tmp_path, is_original=False)
    ours, theirs = (rows_of(each / "request_metrics.csv") for each in (folder, golden))
    factors = [
        float(our["request_execution_time"]) / float(their["request_execution_time"])
        for our, their in zip(ours, theirs, strict=True)
    ]
    assert factors == pytest.approx([980.0] * 4, rel=0.02)


def test_no_decode_begins_before_its_kv_cache_has_arrived(reference: Path, tmp_path: Path) -> None:
    """Three of 100 do so in the original."""
    early = []
    for is_original in (True, False):
        folder = simulated_pools(reference / "golden" / "vidur", tmp_path / str(is_original), is_original=is_original)
        waits = [
            float(row["request_preemption_time"]) - float(row["decode_arrived_at"]) + float(row["prefill_completed_at"])
            for row in rows_of(folder / "request_metrics.csv")
        ]
        early.append(sum(wait < -1e-9 for wait in waits))
    assert early == [3, 0]
