"""A metrics page, as far as it is looked at: samples by name, summed per engine."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from observe.errors import ResponseError

PREFIXES = ("vllm:", "blis_")


@dataclass(slots=True)
class EngineSamples:
    """The samples of one engine; those of a name that differ in other labels are added up.

    `buckets` holds, by histogram, how many observations are at most each bound, infinity included.
    """

    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))


@dataclass(frozen=True, slots=True)
class Page:
    """One reading of a metrics page. What names no engine, such as the lag of the mock server, is in engine ""."""

    model_names: tuple[str, ...]
    engines: Mapping[str, EngineSamples]


def read_page(text: str) -> Page:
    """The figures of vLLM on a page in Prometheus' text format. Raises ResponseError for a page of anything else."""
    engines: dict[str, EngineSamples] = defaultdict(EngineSamples)
    names: dict[str, None] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(PREFIXES):
                continue
            for sample in family.samples:
                labels = sample.labels
                engine = engines[labels.get("engine", "")]
                if name := labels.get("model_name"):
                    names[name] = None
                if sample.name.endswith("_bucket"):
                    engine.buckets[sample.name.removesuffix("_bucket")][float(labels["le"])] += sample.value
                else:
                    engine.values[sample.name] += sample.value
    except (ValueError, KeyError) as error:
        raise ResponseError(f"it is not in Prometheus' text format ({error})") from error
    if not any("vllm:num_requests_running" in engine.values for engine in engines.values()):
        raise ResponseError("it holds no metrics of vLLM")
    return Page(tuple(names), dict(engines))
