"""Saturation detectors on the requests of reference runs: every verdict to the last digit."""

import json
from pathlib import Path

import numpy as np
import pytest

from traces import read_rows
from traces.saturation import DETECTORS, Timeline, labels_of, timeline, write_report
from traces.saturation_options import SaturationSettings, read_settings


def assert_same_report(folder: Path, events: Timeline, settings: SaturationSettings, reference: Path) -> None:
    labels = labels_of(events, list(DETECTORS), settings)
    write_report(folder / "report.json", events, list(DETECTORS), settings, labels)
    assert (folder / "report.json").read_text() == reference.read_text()


@pytest.mark.parametrize("rate", [5, 40])
def test_a_simulation_is_judged_as_in_the_original(rate: int, reference: Path, tmp_path: Path) -> None:
    folder = reference / "golden" / "tools" / "saturation"
    requests = json.loads((folder / f"run_rate{rate}.metrics.json").read_text())["requests"]
    events = timeline(
        np.array([round(each["arrived_at"] * 1e6) for each in requests]),
        np.array([round(each["e2e_ms"] * 1e3) for each in requests]),
        [each["requestID"] for each in requests],
    )
    assert_same_report(tmp_path, events, read_settings(folder / "sat.yaml"), folder / f"run_rate{rate}.json")


def test_a_recording_is_judged_as_in_the_original(reference: Path, tmp_path: Path) -> None:
    folder = reference / "golden" / "tools" / "observe_mock"
    rows = read_rows(folder / "o16_preset.csv")
    events = timeline(
        np.array([row.arrival_time_us for row in rows]),
        np.array([row.last_chunk_time_us - row.send_time_us for row in rows]),
        [str(row.request_id) for row in rows],
    )
    assert_same_report(tmp_path, events, SaturationSettings(), folder / "o16.saturation.json")
