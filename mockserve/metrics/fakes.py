"""Made-up figures in the place of true ones."""

from collections.abc import Mapping, Sequence

from mockserve.metrics.families import Value
from mockserve.metrics.histogram import Histogram
from mockserve.options.fake_metrics import FakeMetrics


def shown(fakes: FakeMetrics, name: str, value: Value, seconds: float) -> Value:
    """The figure to show for a metric so long after the start, where `value` is the true one."""
    if name in fakes.courses:
        return fakes.courses[name](seconds)
    if name in fakes.buckets and isinstance(value, Histogram):
        return _histogram(value, fakes.buckets[name])
    if name == "request_success" and fakes.success is not None and isinstance(value, Mapping):
        return {reason: fakes.success.get(reason, 0) for reason in value}
    return value


def _histogram(true: Histogram, counts: Sequence[int]) -> Histogram:
    found = Histogram(true.bounds)
    for bound, count in zip((*true.bounds, true.bounds[-1]), counts, strict=False):
        found.observe(bound, count)
    return found
