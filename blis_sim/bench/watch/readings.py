"""One reading of the figures that vLLM counts, and what happened between two of them."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from blis_sim.bench.errors import BenchError

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""

PROMPTS, OUTPUTS = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
TTFT, E2E, ITL = (
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:inter_token_latency_seconds",
)
FORMER_ITL = "vllm:time_per_output_token_seconds"
"""The name of `ITL` before vLLM 0.11."""
SUCCESS, RUNNING, WAITING = "vllm:request_success_total", "vllm:num_requests_running", "vllm:num_requests_waiting"
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
CACHE = "vllm:cache_config_info"

HISTOGRAMS = (PROMPTS, OUTPUTS, TTFT, E2E, ITL)
VALUES = (SUCCESS, RUNNING, WAITING, QUERIES, HITS)
NAMES = (
    *VALUES,
    CACHE,
    *(f"{name}_{part}" for name in (*HISTOGRAMS, FORMER_ITL) for part in ("sum", "count", "bucket")),
)
"""The samples that are read."""


@dataclass(slots=True)
class Histogram:
    """A histogram; `buckets` holds how many observations are at most each bound."""

    total: float = 0.0
    count: float = 0.0
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    def since(self, before: "Histogram") -> "Histogram":
        """Return what was observed after an earlier reading."""
        buckets = {bound: count - before.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.total - before.total, self.count - before.count, buckets)

    @property
    def mean(self) -> float | None:
        """The mean of what was observed; None of nothing."""
        return self.total / self.count if self.count > 0 else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one server at an instant, in seconds; those of its engines are added up."""

    at_s: float
    values: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    model_name: str = ""
    cache: Mapping[str, str] = field(default_factory=dict)
    """Labels of `vllm:cache_config_info`."""

    @property
    def in_flight(self) -> float:
        """Requests that run or wait."""
        return self.values[RUNNING] + self.values[WAITING]

    def is_after_restart(self, before: "Reading") -> bool:
        """Whether the server began anew since an earlier reading: a counter has shrunk."""
        shrank = self.values[SUCCESS] < before.values[SUCCESS]
        return shrank or any(self.histograms[name].count < before.histograms[name].count for name in HISTOGRAMS)


def reading_of(at_s: float, samples: Iterable[Sample]) -> Reading:
    """Return a reading. Raises BenchError for samples of no vLLM server."""
    values: dict[str, float] = defaultdict(float)
    histograms: dict[str, Histogram] = defaultdict(Histogram)
    model_name, cache = "", {}
    found = set()
    for name, labels, value in samples:
        found.add(name)
        model_name = model_name or labels.get("model_name", "")
        family, _, part = name.rpartition("_")
        family = ITL if family == FORMER_ITL else family
        if name in VALUES:
            values[name] += value
        elif name == CACHE:
            cache = dict(labels)
        elif part == "bucket" and family in HISTOGRAMS:
            histograms[family].buckets[_bound(labels)] += value
        elif family in HISTOGRAMS and part == "sum":
            histograms[family].total += value
        elif family in HISTOGRAMS and part == "count":
            histograms[family].count += value
    if RUNNING not in found:
        raise BenchError("it holds no metrics of vLLM")
    return Reading(at_s, defaultdict(float, values), defaultdict(Histogram, histograms), model_name, cache)


def _bound(labels: Mapping[str, str]) -> float:
    try:
        return float(labels["le"])
    except (KeyError, ValueError) as error:
        raise BenchError(f"a bucket has no bound that is a number, its labels are {dict(labels)}") from error


def unbroken(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Return the readings after the last restart of the server."""
    for place in range(len(readings) - 1, 0, -1):
        if readings[place].is_after_restart(readings[place - 1]):
            return readings[place:]
    return readings


def between(before: Reading, after: Reading) -> Mapping[str, Histogram]:
    """Return what was observed between two readings of one run of a server."""
    return {name: after.histograms[name].since(before.histograms[name]) for name in HISTOGRAMS}


def place_at(readings: Sequence[Reading], at_s: float) -> int:
    """Return the place of the first reading at or after an instant, the last but one at most."""
    return min(bisect_left([each.at_s for each in readings], at_s), len(readings) - 2)


def bucket_counts(observed: Histogram) -> list[tuple[float, float, float]]:
    """Return lower bound, upper bound and number of observations of each bucket that has some; bounds are finite."""
    found, low, below = [], 0.0, 0.0
    for bound in sorted(observed.buckets):
        count = observed.buckets[bound] - below
        high = bound if bound < inf else max(2 * low, low + 1)
        if count > 0:
            found.append((low, high, count))
        low, below = high, observed.buckets[bound]
    return found
