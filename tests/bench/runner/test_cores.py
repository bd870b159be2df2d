"""Available cores and the default number of processes."""

from pathlib import Path

import pytest

from blis_sim.bench import cores, workers


@pytest.fixture
def quota_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpu.max"
    monkeypatch.setattr(cores, "_QUOTA_FILE", path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    return path


@pytest.mark.parametrize(
    ("quota", "num_cores", "num_processes"),
    [
        ("50000 100000\n", 0.5, 1),
        ("250000 100000\n", 2.5, 3),
        ("3200000 100000\n", 8, 8),
        ("max 100000\n", 8, 8),
        ("", 8, 8),
    ],
    ids=["half a core", "part of a core", "quota beyond the mask", "no quota", "empty file"],
)
def test_quota_of_the_control_group_limits_cores(
    quota: str, num_cores: float, num_processes: int, quota_file: Path
) -> None:
    quota_file.write_text(quota)
    assert cores.available_cores() == num_cores
    assert cores.default_num_processes() == num_processes


def test_affinity_mask_counts_without_a_control_group(quota_file: Path) -> None:
    assert not quota_file.exists()
    assert cores.available_cores() == 8


def test_pool_has_as_many_processes_as_the_quota_allows(quota_file: Path) -> None:
    quota_file.write_text("200000 100000\n")
    with workers.process_pool(None) as pool:
        assert pool._num_processes == 2
