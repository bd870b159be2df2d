"""Aggregate figures of a simulation against those of a reference, with and without knowledge of LoRA adapters."""

from dataclasses import dataclass

from calibrate.errors import CalibrateError
from calibrate.metrics_file import MetricsFile

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
