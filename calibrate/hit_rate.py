"""The share of KV blocks found in the prefix cache, measured at the server and simulated."""

from dataclasses import dataclass

from calibrate.metrics_file import MetricsFile
from traces import TraceHeader


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
