"""Readings of vLLM's metrics, the increase between two readings, and the sources of readings."""

import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from blis_sim.bench import BenchError
from blis_sim.bench.watch.options import WatchOptions
from observe.top.polling import read_url

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

    def increase_since(self, before: "Histogram") -> "Histogram":
        """Return the observations since an earlier reading."""
        buckets = {bound: count - before.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.total - before.total, self.count - before.count, buckets)

    @property
    def mean(self) -> float | None:
        """The mean of the observations; None without observations."""
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
    num_engines: int = 1

    @property
    def in_flight(self) -> float:
        """Requests that run or wait."""
        return self.values[RUNNING] + self.values[WAITING]

    def is_after_restart(self, before: "Reading") -> bool:
        """Whether the server restarted since an earlier reading: a counter has shrunk."""
        shrank = self.values[SUCCESS] < before.values[SUCCESS]
        return shrank or any(self.histograms[name].count < before.histograms[name].count for name in HISTOGRAMS)


def reading_of(at_s: float, samples: Iterable[Sample]) -> Reading:
    """Return a reading. Raises BenchError for samples of no vLLM server."""
    values: dict[str, float] = defaultdict(float)
    histograms: dict[str, Histogram] = defaultdict(Histogram)
    model_name, cache = "", {}
    found, num_engines = set(), 0
    for name, labels, value in samples:
        found.add(name)
        model_name = model_name or labels.get("model_name", "")
        family, _, part = name.rpartition("_")
        family = ITL if family == FORMER_ITL else family
        if name in VALUES:
            values[name] += value
        elif name == CACHE:
            cache, num_engines = dict(labels), num_engines + 1
        elif part == "bucket" and family in HISTOGRAMS:
            histograms[family].buckets[_bound(labels)] += value
        elif family in HISTOGRAMS and part == "sum":
            histograms[family].total += value
        elif family in HISTOGRAMS and part == "count":
            histograms[family].count += value
    if SUCCESS not in found:  # gauges may be missing before the first step
        raise BenchError("it holds no metrics of vLLM")
    return Reading(
        at_s, defaultdict(float, values), defaultdict(Histogram, histograms), model_name, cache, max(1, num_engines)
    )


def _bound(labels: Mapping[str, str]) -> float:
    try:
        return float(labels["le"])
    except (KeyError, ValueError) as error:
        raise BenchError(f"a bucket has no bound that is a number, its labels are {dict(labels)}") from error


def since_restart(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Return the readings after the last restart of the server."""
    for place in range(len(readings) - 1, 0, -1):
        if readings[place].is_after_restart(readings[place - 1]):
            return readings[place:]
    return readings


def increase_between(before: Reading, after: Reading) -> Mapping[str, Histogram]:
    """Return what was observed between two readings of one run of a server."""
    return {name: after.histograms[name].increase_since(before.histograms[name]) for name in HISTOGRAMS}


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


_OF_SERVER = ("job", "instance", "pod", "namespace", "model_name")
"""Labels in which servers differ; engines of one server differ in `engine` alone."""


class Source(Protocol):
    """Readings of one server. `poll` may raise BlisError; the readings stay as they were then."""

    @property
    def poll_every_s(self) -> float: ...

    def poll(self) -> None:
        """Read now."""
        ...

    @property
    def readings(self) -> Sequence[Reading]:
        """Readings since the server last started, ascending, no older than was requested."""
        ...


def source_of(options: WatchOptions, keep_s: float) -> Source:
    """Return the source that the URL names, with readings of the last `keep_s`."""
    url = (options.url or "").rstrip("/")
    if options.reads_prometheus:
        base = url[: url.index("/api/v1") + len("/api/v1")]
        return PrometheusSource(f"{base}/query", options.selector, options.api_key, options.watch_interval, keep_s)
    page = url if urlsplit(url).path.endswith("/metrics") else f"{url}/metrics"
    return PageSource(page, options.api_key, options.scrape_interval, keep_s)


class PageSource:
    """The metrics page of a server."""

    def __init__(self, url: str, api_key: str | None, poll_every_s: float, keep_s: float) -> None:
        self.poll_every_s = poll_every_s
        self.readings: Sequence[Reading] = []
        self._url, self._api_key, self._keep_s = url, api_key, keep_s

    def poll(self) -> None:
        text = read_url(self._url, self._api_key).decode("utf-8", "replace")
        try:
            reading = reading_of(time.time(), _samples(text))
        except (BenchError, ValueError, KeyError) as error:
            raise BenchError(f"cannot use {self._url}: {error}") from error
        kept = [each for each in self.readings if each.at_s >= reading.at_s - self._keep_s]
        self.readings = since_restart([*kept, reading])


class PrometheusSource:
    """A Prometheus, which keeps the readings itself."""

    def __init__(self, url: str, selector: str, api_key: str | None, poll_every_s: float, keep_s: float) -> None:
        self.poll_every_s = poll_every_s
        self.readings: Sequence[Reading] = []
        self._api_key, self._url = api_key, url
        labels = f'__name__=~"{"|".join(NAMES)}"' + (f",{selector}" if selector else "")
        self._query = f"{{{labels}}}[{max(1, round(keep_s))}s]"

    def poll(self) -> None:
        data = read_url(f"{self._url}?{urlencode({'query': self._query})}", self._api_key)
        try:
            series = _series(json.loads(data))
            self.readings = since_restart(_readings(series))
        except (BenchError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"cannot use {self._url}: {error}") from error


def _samples(text: str) -> list[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        if family.name.startswith("vllm:")
        for sample in family.samples
    ]


def _series(reply: Any) -> list[dict[str, Any]]:
    if reply.get("status") != "success" or reply["data"].get("resultType") != "matrix":
        raise BenchError(f"it answers no range of samples: {reply.get('error') or reply.get('status')}")
    found: list[dict[str, Any]] = reply["data"]["result"]
    if not found:
        raise BenchError("it has no metrics of vLLM with these labels")
    # vLLM's cache_config_info has no model_name, unlike the other metrics of the same server.
    named = [each["metric"] for each in found if "model_name" in each["metric"]] or [each["metric"] for each in found]
    servers = {tuple((name, labels.get(name, "")) for name in _OF_SERVER) for labels in named}
    if len(servers) > 1:
        names = " and ".join(
            sorted("{" + ",".join(f'{name}="{value}"' for name, value in each if value) + "}" for each in servers)[:2]
        )
        raise BenchError(f"it has metrics of {len(servers)} servers, name one by --selector: {names}")
    return found


def _readings(series: Sequence[dict[str, Any]]) -> list[Reading]:
    """Return a reading for each scrape: all samples of one have the same instant."""
    by_instant: dict[float, list[Sample]] = defaultdict(list)
    for each in series:
        labels = {name: str(value) for name, value in each["metric"].items()}
        for at_s, value in each["values"]:
            by_instant[float(at_s)].append((labels["__name__"], labels, float(value)))
    most = max(map(len, by_instant.values()), default=0)
    # Instants with few samples are those of series that ended, such as of a server before.
    return [reading_of(at_s, by_instant[at_s]) for at_s in sorted(by_instant) if 2 * len(by_instant[at_s]) > most]
