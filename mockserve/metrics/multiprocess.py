"""The metrics page as in the multi-process mode of prometheus_client, which vLLM uses with several API servers."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

STEP_GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
)
"""Gauges that vLLM sets after each step. In multi-process mode a gauge has no sample before it is set."""

_NAMED = tuple(f"vllm:{name}" for name in STEP_GAUGES)
TYPES = ("histogram", "counter", "summary", "gauge")
"""Types in the order of a genuine page, which is that of the files of a folder and so any."""

_HISTOGRAM_ORDER = ("_sum", "_bucket", "_count")


def as_in_multiprocess_mode(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the families by type, since each type has a file of its own, without `_created` samples.

    A family without samples is left out, unless its gauges have labels and no values yet.
    """
    for metric in sorted(metrics, key=lambda each: TYPES.index(each.type)):
        samples = [each for each in metric.samples if not each.name.endswith("_created")]
        if not samples and metric.name not in _NAMED:
            continue
        metric.samples = _histogram(metric.name, samples) if metric.type == "histogram" else samples
        yield metric


def _histogram(name: str, samples: list[Sample]) -> list[Sample]:
    """Return the samples of each series with the sum first and the count last."""
    found: list[Sample] = []
    for _, series in groupby(samples, key=_labels_without_bound):
        found += sorted(series, key=lambda each: _HISTOGRAM_ORDER.index(each.name.removeprefix(name)))
    return found


def _labels_without_bound(sample: Sample) -> dict[str, str]:
    return {name: value for name, value in sample.labels.items() if name != "le"}
