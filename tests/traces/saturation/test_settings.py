"""Settings of the detectors in a file."""

from pathlib import Path

import pytest

from traces import TraceError
from traces.saturation_options import SaturationSettings, read_settings


def read(folder: Path, text: str) -> SaturationSettings:
    (folder / "s.yaml").write_text(text)
    return read_settings(folder / "s.yaml")


def test_missing_settings_keep_their_values(tmp_path: Path) -> None:
    assert read(tmp_path, "") == SaturationSettings()
    assert read(tmp_path, "threshold: {}\nbacklog_drift: {}\n") == SaturationSettings()
    assert read(tmp_path, "threshold: {threshold_ms: 3000}\n") == SaturationSettings(threshold_ms=3_000)


def test_the_window_of_the_trend_is_that_of_the_label_too(tmp_path: Path) -> None:
    found = read(tmp_path, "backlog_drift: {window_size_sec: 2.5}\n")
    assert (found.window_us, found.final_window_us) == (2_500_000, 2_500_000)


def test_keys_that_change_nothing_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, "backlog_drift: {min_windows: 3, window_size_sec: 1, peak_ratio: 2}\n")
    assert found.notes == (
        f"{tmp_path}/s.yaml: backlog_drift.min_windows has no effect",
        f"{tmp_path}/s.yaml: backlog_drift.peak_ratio has no effect",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("composite: {}\n", ": unknown key 'composite', known are threshold, backlog_drift"),
        ("threshold: {ms: 3}\n", ": unknown key 'ms' of threshold, known are threshold_ms"),
        (
            "threshold: {threshold_ms: 0}\n",
            " key threshold.threshold_ms: expected a number between 0.001 and 1000000000000, got 0",
        ),
        (
            "backlog_drift: {window_size_sec: 0.0001}\n",
            " key backlog_drift.window_size_sec: expected a number between 0.001 and 1000000000, got 0.0001",
        ),
        (
            "threshold: {threshold_ms: slow}\n",
            " key threshold.threshold_ms: expected a number between 0.001 and 1000000000000, got 'slow'",
        ),
        ("[1]\n", ": expected keys and values, got [1]"),
        ("a: [\n", " line 2: expected YAML, "),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/s.yaml{said}")
