"""Figures of JSON files of other commands, and the hit rates of the prefix cache, measured and simulated."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.errors import CalibrateError
from traces import TraceHeader
from traces.text_file import read_json


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The object of a file."""

    path: Path
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the object has a value under a key."""
        return self.values.get(key) is not None

    def number(self, key: str) -> float:
        """The number under a key, `a.b` for the key b of the object a. Raises CalibrateError."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            found = "but the key is missing" if value is None else f"got {value!r}"
            raise CalibrateError(f"{self.path} key {key}: expected a number, {found}")
        return value


def read_metrics(path: Path) -> MetricsFile:
    """Read a JSON object. Raises TraceError when it is no JSON, CalibrateError when it is no object."""
    values = read_json(path)
    if not isinstance(values, Mapping):
        raise CalibrateError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return MetricsFile(path, values)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Both rates as fractions, their distance and its limit in percentage points, and where the real one is from."""

    real: float
    sim: float
    tolerance_pp: float
    source: str

    @property
    def error_pp(self) -> float:
        """Distance in percentage points."""
        return abs(self.real - self.sim) * 100

    @property
    def within(self) -> bool:
        """Whether the distance is within its limit."""
        return self.error_pp <= self.tolerance_pp + 1e-9


def hit_rate(header: TraceHeader, metrics: MetricsFile, tolerance_pp: float) -> HitRate | str:
    """The two rates, or a sentence saying which side has none. Raises CalibrateError for what is no number."""
    observed = header.observed_kv_metrics or {}
    if "hit_rate" not in observed:
        return "the trace header holds no observed_kv_metrics.hit_rate, so cache hit rates are not compared"
    if not metrics.has("cache_hit_rate"):
        return f"{metrics.path} holds no cache_hit_rate, so cache hit rates are not compared"
    return HitRate(observed["hit_rate"], metrics.number("cache_hit_rate"), tolerance_pp, observed.get("source", ""))
