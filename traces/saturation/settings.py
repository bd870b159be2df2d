"""Settings of detectors, from a YAML file."""

from pathlib import Path
from typing import Any, NamedTuple

from traces.header import Key, checked
from traces.text_file import TraceError, read_yaml

_AMOUNT = Key(float, at_least=0)
_MIN_MS = 0.001
_MIN_S = 0.001
_MAX_S = 1e9
_WITHOUT_EFFECT = (
    "min_windows",
    "peak_ratio",
    "peak_ratio_band",
    "confidence_ci",
    "warmup_windows",
    "tail_windows",
    "saturated_drain_ratio",
    "transient_drain_ratio",
)
"""Keys of backlog_drift that the format has, but that no rule of the original uses."""
_KEYS = {
    "threshold": Key(keys={"threshold_ms": _AMOUNT}),
    "backlog_drift": Key(keys={"window_size_sec": _AMOUNT, **dict.fromkeys(_WITHOUT_EFFECT, _AMOUNT)}),
}


class SaturationSettings(NamedTuple):
    """Settings of the detectors. `notes` name the settings of a file that have no effect."""

    threshold_ms: float = 5_000.0
    """Mean E2E from which the threshold detector calls a run overloaded."""
    window_us: int = 60_000_000
    """Over such windows the backlog-drift detector looks for a trend."""
    final_window_us: int = 30_000_000
    """The label of a run is the most frequent one in so much time before its last event."""
    notes: tuple[str, ...] = ()


def read_settings(path: Path | str) -> SaturationSettings:
    """Read settings; keys that the file lacks keep their defaults. Raises TraceError."""
    path = Path(path)
    loaded = read_yaml(path)
    given = checked(path, "", {} if loaded is None else loaded, _KEYS)
    drift = given.get("backlog_drift", {})
    settings: dict[str, Any] = {}
    if "threshold_ms" in given.get("threshold", {}):
        limit_ms = given["threshold"]["threshold_ms"]
        settings["threshold_ms"] = _between(_MIN_MS, _MAX_S * 1e3, path, "threshold.threshold_ms", limit_ms)
    if "window_size_sec" in drift:
        window_s = _between(_MIN_S, _MAX_S, path, "backlog_drift.window_size_sec", drift["window_size_sec"])
        settings["window_us"] = settings["final_window_us"] = int(window_s * 1e6)
    notes = tuple(f"{path}: backlog_drift.{key} has no effect" for key in drift if key in _WITHOUT_EFFECT)
    return SaturationSettings(**settings, notes=notes)


def _between(least: float, most: float, path: Path, key: str, value: float) -> float:
    if value < least:
        raise TraceError(f"{path} key {key}: expected a number of at least {least:g}, got {value:g}")
    if value > most:
        raise TraceError(f"{path} key {key}: expected a number of at most {most:g}, got {value:g}")
    return value
