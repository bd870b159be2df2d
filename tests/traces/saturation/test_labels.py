"""The label of a run, and the file with all verdicts."""

import json
from pathlib import Path

import numpy as np

from traces.saturation import DETECTORS, Timeline, labels_of, timeline, write_report
from traces.saturation_options import SaturationSettings

SETTINGS = SaturationSettings(threshold_ms=10, final_window_us=100_000)


def of(*requests: tuple[int, int]) -> Timeline:
    arrived_at, e2e = np.array(requests, np.int64).reshape(-1, 2).T
    return timeline(arrived_at, e2e, [f"request_{number}" for number in range(len(requests))])


def test_the_label_is_the_most_frequent_verdict_in_the_end() -> None:
    slow_at_last = of((0, 5_000), (800_000, 5_000), (900_000, 100_000))
    assert labels_of(slow_at_last, ["threshold"], SETTINGS) == {"threshold": "OVERLOADED"}
    longer = SETTINGS._replace(final_window_us=2_000_000)
    assert labels_of(slow_at_last, ["threshold"], longer) == {"threshold": "STABLE"}


def test_the_worse_of_two_equally_frequent_labels_stays() -> None:
    """The arrival finds a stable run, its answer an overloaded one."""
    assert labels_of(of((0, 50_000)), ["threshold"], SETTINGS) == {"threshold": "OVERLOADED"}


def test_labels_come_by_name() -> None:
    assert list(labels_of(of((0, 50_000)), list(DETECTORS), SETTINGS)) == ["backlog-drift", "composite", "threshold"]


def test_a_run_without_answers_has_no_label() -> None:
    assert labels_of(of(), list(DETECTORS), SETTINGS) == {}


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    write_report(tmp_path / "s.json", of(), ["threshold"], SETTINGS, {})
    assert json.loads((tmp_path / "s.json").read_text()) == {"final": {}, "trace": []}
