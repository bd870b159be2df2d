"""Figures of JSON files of other commands: hit rates of the prefix cache, and aggregates against a reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.pair import CalibrateError
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


_METRICS = (("ttft", "ttft"), ("throughput", "output_throughput"))
"""Name of a metric, and its key in the reference file."""


@dataclass(frozen=True, slots=True)
class AdapterMetric:
    """One metric. `delta_mape` is how much the adapters change the error; None without a blind run."""

    name: str
    reference: float
    simulated: float
    error: float
    within: bool
    delta_mape: float | None


@dataclass(frozen=True, slots=True)
class AdapterComparison:
    """All metrics of a model, errors as fractions of the reference."""

    model: str
    threshold: float
    metrics: list[AdapterMetric]

    @property
    def all_within(self) -> bool:
        """Whether every metric is within the threshold."""
        return all(metric.within for metric in self.metrics)


def compare_adapter(
    reference: MetricsFile, aware: MetricsFile, blind: MetricsFile | None, threshold: float
) -> AdapterComparison:
    """Compare mean TTFT and output throughput of a simulation with a reference file. Raises CalibrateError."""
    metrics = []
    for name, key in _METRICS:
        reference_value = _positive(reference, f"adapter_aware.{key}")
        simulated = _simulated(aware, name)
        error = abs(simulated - reference_value) / reference_value
        delta = None
        if blind is not None:
            reference_change = reference_value / _positive(reference, f"adapter_blind.{key}")
            change = simulated / _above_zero(blind, name, _simulated(blind, name))
            delta = abs(change - reference_change) / reference_change
        metrics.append(AdapterMetric(name, reference_value, simulated, error, error <= threshold, delta))
    return AdapterComparison(str(reference.values.get("model", "")), threshold, metrics)


def _simulated(metrics: MetricsFile, name: str) -> float:
    if name == "ttft":
        return metrics.number("ttft_mean_ms")
    return metrics.number("total_output_tokens") / _positive(metrics, "vllm_estimated_duration_s")


def _positive(metrics: MetricsFile, key: str) -> float:
    return _above_zero(metrics, key, metrics.number(key))


def _above_zero(metrics: MetricsFile, key: str, value: float) -> float:
    if value <= 0:
        raise CalibrateError(f"{metrics.path} key {key}: expected a number above 0, got {value:g}")
    return value
