"""Counters of the metrics page: vLLM's counts of requests and steps, HTTP requests by route, operations, tools."""

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import log
from time import perf_counter
from typing import Any, TypeAlias

from prometheus_client import Gauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

from blis_sim.engine.units import Micros
from mockserve.realtime.in_flight import InFlightRequest

# vLLM's counts of requests and steps, fed by the real-time driver on the engine's clock, and histograms.

BUCKETS_PER_E = 50
"""Buckets per factor e of duration; each bucket is 2 % wide, so its middle is within 1 % of its durations."""


class LogHistogram:
    """A histogram of durations with logarithmic buckets, narrow enough for percentiles within 1 %.

    Only used buckets take memory, about 1,000 at most.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def observe(self, duration_us: float, times: int = 1) -> None:
        """Count a duration `times` times; a duration below a microsecond counts as one microsecond."""
        bucket = int(log(duration_us) * BUCKETS_PER_E) if duration_us > 1 else 0
        self.counts[bucket] = self.counts.get(bucket, 0) + times


class Histogram:
    """Counts of observations per bucket. `bounds` ascend; an observation equal to a bound belongs to its bucket."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add `times` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Add the observations of a histogram with equal bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total

    def copy(self) -> "Histogram":
        """Return a histogram that later observations leave as it is."""
        found = Histogram(self.bounds)
        found.counts, found.count, found.total = self.counts[:], self.count, self.total
        return found

    def since(self, counts_before: Sequence[int]) -> "Histogram":
        """Return the observations made since `counts` was `counts_before`, without their total."""
        window = Histogram(self.bounds)
        window.counts = [now - before for now, before in zip(self.counts, counts_before, strict=True)]
        window.count = sum(window.counts)
        return window

    def quantile(self, fraction: float) -> float:
        """Return the interpolated quantile, at most the last bound.

        Returns 0 without observations.
        """
        rank = fraction * self.count
        seen = 0
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= rank:
                return lower + (bound - lower) * (rank - seen) / count
            seen += count
            lower = bound
        return lower if self.count else 0.0


def observe_all(observations: Iterable[tuple[Histogram, float]]) -> None:
    """Add an observation to each of several histograms, at less cost than one by one."""
    for histogram, value in observations:
        histogram.counts[bisect_left(histogram.bounds, value)] += 1
        histogram.count += 1
        histogram.total += value


def cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Return cumulative buckets, as in the Prometheus exposition format."""
    seen = 0
    buckets = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call]
    return buckets


Sample: TypeAlias = tuple[Sequence[str], float | Histogram, float]
"""Label values, value, and start of counting in Unix seconds, which gauges do not have."""
_FAMILIES: Mapping[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def metric_of(kind: str, name: str, help_text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Return a counter, gauge or histogram for prometheus_client."""
    metric: Any = _FAMILIES[kind](name, help_text, labels=labels)
    for values, value, created in samples:
        if isinstance(value, Histogram):
            metric.add_metric(values, cumulative(value), value.total)
            metric.add_sample(f"{name}_created", dict(zip(labels, values, strict=True)), created)
        else:
            metric.add_metric(values, value, **({"created": created} if kind == "counter" else {}))
    found: Metric = metric
    return found


LATENESS_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WINDOW_S = 10.0
WARN_ABOVE_S = 0.005
PERCENTILE = 0.99

_logger = logging.getLogger(__name__)


class Lateness:
    """A histogram of the real seconds between the due time and the delivery of frames.

    Every `WINDOW_S` the 99th percentile of the window's frames is computed, interpolated within a bucket, and passed to
    `warn` if it exceeds `WARN_ABOVE_S`.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.histogram = Histogram(LATENESS_BUCKETS_S)
        self.p99_s = 0.0
        """The 99th percentile of the latest complete window."""
        self._warn = warn or _logger.warning
        self._counts_before = list(self.histogram.counts)
        self._window_ends_at: float | None = None

    def observe(self, lateness_s: float, now_s: float, num_frames: int = 1) -> None:
        """Record frames sent together at `now_s` on a monotonic clock, with the lateness of the first."""
        self.histogram.observe(lateness_s, num_frames)
        if self._window_ends_at is None or now_s >= self._window_ends_at:
            if self._window_ends_at is not None:
                window = self.histogram.since(self._counts_before)
                self.p99_s = window.quantile(PERCENTILE)
                if self.p99_s > WARN_ABOVE_S:
                    self._warn(
                        f"tokens leave late: p99 {self.p99_s * 1000:.1f} ms over the last {window.count:,} frames;"
                        " this machine cannot keep up with the load at this speed"
                    )
            self._counts_before = list(self.histogram.counts)
            self._window_ends_at = now_s + WINDOW_S


REQUEST_LATENCY_BUCKETS_S: tuple[float, ...] = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN_BUCKETS_S: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
TOKEN_GAP_BUCKETS_S: tuple[float, ...] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
DEVICE, HOST, PEER, _, UNSPECIFIED = CACHE_SOURCES
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
MOST_ADAPTER_LISTS = 1000
MOST_ADAPTER_CHARACTERS = 1_000_000
"""Limits of the number of kept adapter lists and of their total length, because clients choose the names."""
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_count_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `max_model_len`."""
    bounds = []
    scale = 1
    while scale <= max_model_len:
        bounds += [step * scale for step in (1, 2, 5) if step * scale <= max_model_len]
        scale *= 10
    return tuple(bounds)


class Adapters:
    """Records which LoRA adapters were in use together after a step, with the latest time of each combination.

    vLLM's front end counts a request from its first token on. So an adapter is in use from the first token of its first
    request to the end of its last. A step is recorded after the ends of requests in it. vLLM's two lists, of running
    and of waiting adapters, both name all adapters in use, in order of their first use. vLLM keeps every list forever;
    here the lists seen longest ago are dropped above a limit.
    """

    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}
        self._num_characters = 0
        self._numbers: dict[str, int] = {}
        self._step_ended_at: float | None = None
        """End of a step that is not recorded yet, because requests may still end in it."""

    def last_seen(self) -> Mapping[str, float]:
        """Comma-joined lists of adapters with the Unix time each was last seen, in ascending order of time."""
        self._record_adapters()
        return self._last_seen

    def request_started(self, adapter: str) -> None:
        """A request had its first token. An empty `adapter` means none."""
        self._record_adapters()
        if adapter:
            self._numbers[adapter] = self._numbers.get(adapter, 0) + 1

    def request_ended(self, adapter: str) -> None:
        """A request that had its first token has ended. An empty `adapter` means none."""
        if adapter:
            self._numbers[adapter] -= 1
            if not self._numbers[adapter]:
                del self._numbers[adapter]

    def request_aborted(self, adapter: str) -> None:
        """A request that had its first token was aborted between two steps."""
        self._record_adapters()
        self.request_ended(adapter)

    def step_ended(self) -> None:
        """A step has generated tokens. Calls of `request_ended` for its requests follow."""
        self._record_adapters()
        self._step_ended_at = time.time()

    def _record_adapters(self) -> None:
        """Record the adapters in use after the latest step, once."""
        if self._step_ended_at is None:
            return
        names = ",".join(self._numbers)
        if self._last_seen.pop(names, None) is None:
            self._num_characters += len(names)
        self._last_seen[names] = self._step_ended_at
        self._step_ended_at = None
        while len(self._last_seen) > MOST_ADAPTER_LISTS or (
            self._num_characters > MOST_ADAPTER_CHARACTERS and len(self._last_seen) > 1
        ):
            oldest = next(iter(self._last_seen))
            del self._last_seen[oldest]
            self._num_characters -= len(oldest)


MOST_RECENT_REQUESTS = 1000
"""Number of latest requests whose mean is the hit rate in a log line."""


class RecentHitRate:
    """The hit rate of a cache over its latest requests, weighted by their tokens."""

    __slots__ = ("_num_hits", "_num_queries", "_requests")

    def __init__(self) -> None:
        self._requests: deque[tuple[int, int]] = deque()
        self._num_queries = 0
        self._num_hits = 0

    def observe(self, num_queries: int, num_hits: int) -> None:
        """Add a request that looked up `num_queries` tokens and found `num_hits` of them."""
        self._requests.append((num_queries, num_hits))
        self._num_queries += num_queries
        self._num_hits += num_hits
        if len(self._requests) > MOST_RECENT_REQUESTS:
            num_queries, num_hits = self._requests.popleft()
            self._num_queries -= num_queries
            self._num_hits -= num_hits

    @property
    def percent(self) -> float | None:
        """The hit rate in percent; None before the first request."""
        if not self._requests:
            return None
        return 100 * self._num_hits / self._num_queries if self._num_queries else 0.0


class EngineMetrics:
    """Counters and histograms of one engine, named after the things counted; times are simulated seconds."""

    def __init__(
        self,
        max_model_len: int,
        external_source: str | None = None,
        caches_prefixes: bool = True,
        has_adapters: bool = False,
    ) -> None:
        """`external_source` is where a KV connector finds blocks, one of `CACHE_SOURCES`; None without a connector."""
        self._caches_prefixes = caches_prefixes
        counts = token_count_buckets(max_model_len)
        self._external_source = external_source
        self.prompt_tokens = 0
        self.prompt_tokens_by_source = dict.fromkeys(PROMPT_SOURCES, 0)
        self.prompt_tokens_cached_by_source = dict.fromkeys(CACHE_SOURCES, 0)
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.external_prefix_cache_queries = 0
        self.external_prefix_cache_hits = 0
        self.recent_hit_rate = RecentHitRate()
        self.recent_external_hit_rate = RecentHitRate()
        self.request_success = dict.fromkeys(FINISHED_REASONS, 0)
        self.sleep_state = SLEEP_STATES[0]
        self.iteration_tokens = Histogram(STEP_TOKEN_BUCKETS)
        self.first_token_s = Histogram(FIRST_TOKEN_BUCKETS_S)
        self.token_gap_s = Histogram(TOKEN_GAP_BUCKETS_S)
        self.first_token_fine = LogHistogram()
        self.token_gap_fine = LogHistogram()
        self.time_per_token_s = Histogram(TOKEN_GAP_BUCKETS_S)
        self.e2e_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.queue_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.prefill_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.decode_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.inference_s = Histogram(REQUEST_LATENCY_BUCKETS_S)
        self.prompt_lengths = Histogram(counts)
        self.computed_prompt_lengths = Histogram(counts)
        self.generation_lengths = Histogram(counts)
        self.longest_choices = Histogram(counts)
        self.params_max_tokens = Histogram(counts)
        self.params_n = Histogram(CHOICE_BUCKETS)
        self.preemptions = Histogram(PREEMPTION_BUCKETS)
        self.adapters = Adapters() if has_adapters else None

    @property
    def has_stepped(self) -> bool:
        """Whether the engine has begun to work on a request."""
        return self.prefix_cache_queries > 0 or self.iteration_tokens.count > 0

    @property
    def prompt_tokens_cached(self) -> int:
        return self.prompt_tokens - self.prompt_tokens_by_source["local_compute"]

    def prefix_cache_was_reset(self) -> None:
        """Let the hit rate in log lines begin anew; counters on the metrics page go on, as in vLLM."""
        self.recent_hit_rate = RecentHitRate()

    def scheduled(self, flight: InFlightRequest, at: Micros) -> None:
        if flight.first_scheduled_at is not None:
            return
        flight.first_scheduled_at = at
        local = flight.num_cached_tokens - flight.num_external_tokens
        self.prompt_tokens_cached_by_source[DEVICE] += local
        self.prompt_tokens_cached_by_source[self._external_source or PEER] += flight.num_external_tokens
        if self._caches_prefixes and flight.request.reads_prefix_cache:
            self.prefix_cache_queries += flight.request.input_tokens
            self.prefix_cache_hits += local
            self.recent_hit_rate.observe(flight.request.input_tokens, local)
        if self._external_source is not None or flight.request.external is not None:
            self.external_prefix_cache_queries += flight.request.input_tokens - local
            self.external_prefix_cache_hits += flight.num_external_tokens
            self.recent_external_hit_rate.observe(flight.request.input_tokens - local, flight.num_external_tokens)

    def first_token(self, flight: InFlightRequest, latency_us: Micros) -> None:
        num_prompt_tokens, num_cached_tokens = flight.request.input_tokens, flight.num_cached_tokens
        self.prompt_tokens += num_prompt_tokens
        self.prompt_tokens_by_source["local_compute"] += num_prompt_tokens - num_cached_tokens
        self.prompt_tokens_by_source["local_cache_hit"] += num_cached_tokens - flight.num_external_tokens
        self.prompt_tokens_by_source["external_kv_transfer"] += flight.num_external_tokens
        self.first_token_s.observe(latency_us / 1e6)
        self.first_token_fine.observe(latency_us)
        if self.adapters is not None:
            self.adapters.request_started(flight.request.adapter)

    def step(self, num_prompt_tokens: int, num_tokens: int, gaps_us: dict[Micros, int]) -> None:
        self.generation_tokens += num_tokens
        self.iteration_tokens.observe(num_prompt_tokens + num_tokens)
        for gap, times in gaps_us.items():
            self.token_gap_s.observe(gap / 1e6, times)
            self.token_gap_fine.observe(gap, times)
        if self.adapters is not None:
            self.adapters.step_ended()

    def aborted(self, flight: InFlightRequest) -> None:
        if flight.num_tokens and self.adapters is not None:
            self.adapters.request_aborted(flight.request.adapter)

    def completed(self, flight: InFlightRequest, latency_us: Micros, finish_reason: str) -> None:
        if flight.num_tokens and self.adapters is not None:
            self.adapters.request_ended(flight.request.adapter)
        self.request_success[finish_reason] += 1
        request, parent, num_tokens = flight.request, flight.parent, flight.num_tokens
        found: list[tuple[Histogram, float]] = [
            (self.e2e_s, latency_us / 1e6),
            (self.prompt_lengths, request.input_tokens),
            (self.computed_prompt_lengths, request.input_tokens - flight.num_cached_tokens),
            (self.generation_lengths, num_tokens),
            (self.params_max_tokens, request.max_output_tokens),
            (self.preemptions, flight.num_preemptions),
        ]
        if parent is None:
            found += ((self.params_n, 1), (self.longest_choices, num_tokens))
        else:
            parent.num_complete += 1
            parent.longest_tokens = max(parent.longest_tokens, num_tokens)
            if parent.num_complete == parent.number:
                found += ((self.params_n, parent.number), (self.longest_choices, parent.longest_tokens))
        scheduled_at, first_at, last_at = flight.first_scheduled_at, flight.first_token_at, flight.last_token_at
        if scheduled_at is not None and first_at is not None:
            found += (
                (self.queue_s, (scheduled_at - flight.queued_at) / 1e6),
                (self.prefill_s, (first_at - scheduled_at) / 1e6),
                (self.decode_s, (last_at - first_at) / 1e6),
                (self.inference_s, (last_at - scheduled_at) / 1e6),
                (self.time_per_token_s, (last_at - first_at) / max(1, num_tokens - 1) / 1e6),
            )
        observe_all(found)


# Metrics of the server: HTTP requests by route, WebSockets, operations, tool parsing, as vLLM counts them.

WEBSOCKET_BUCKETS_S = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@dataclass(slots=True)
class WebSocketMetrics:
    """Counts open WebSockets, opened WebSockets, and their durations."""

    num_active: int = 0
    num_opened: int = 0
    durations_s: Histogram = field(default_factory=lambda: Histogram(WEBSOCKET_BUCKETS_S))
    created: float = field(default_factory=time.time)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a WebSocket that is open while the block runs."""
        self.num_active += 1
        self.num_opened += 1
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.num_active -= 1
            self.durations_s.observe(time.monotonic() - started_s)

    def add(self, other: "WebSocketMetrics") -> None:
        """Add the counts of another object."""
        self.num_active += other.num_active
        self.num_opened += other.num_opened
        self.durations_s.add(other.durations_s)
        self.created = min(self.created, other.created)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for prometheus_client."""
        name = "vllm:websocket_connections"
        active = [((), self.num_active, self.created)]
        yield metric_of("gauge", f"{name}_active", "Number of currently active WebSocket connections.", (), active)
        opened = [((), self.num_opened, self.created)]
        yield metric_of("counter", name, "Total number of WebSocket connections.", (), opened)
        name = "vllm:websocket_connection_duration_seconds"
        durations = [((), self.durations_s, self.created)]
        yield metric_of("histogram", name, "Duration of WebSocket connections in seconds.", (), durations)


FINE_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip
COARSE_BUCKETS_S = (0.1, 0.5, 1)
UNCOUNTED_PARTS = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Parts of paths that vLLM does not count; /load also matches /v1/load_lora_adapter."""

NO_ROUTE = "none"


def counted_path(route: str | None, path: str) -> str | None:
    """Return the path under which a request to `path` counts: its route's, or `NO_ROUTE`; None if it does not count."""
    named = path if route is None else route
    for part in UNCOUNTED_PARTS:
        if part in named:
            return None
    return NO_ROUTE if route is None else route


FINE_HELP = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
COARSE_HELP = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
"""Help texts of vLLM's instrumentation, including their trailing space."""


@dataclass(slots=True)
class _Sizes:
    """Bytes of bodies by their Content-Length headers; bodies without one count as 0."""

    count: int = 0
    total: int = 0
    created: float = field(default_factory=time.time)


@dataclass(slots=True)
class _Durations:
    histogram: Histogram
    created: float = field(default_factory=time.time)


class HttpMetrics:
    """Counts requests by route, method and class of status."""

    def __init__(self) -> None:
        self.errors: dict[int, int] = {}
        """Replies with a status of at least 400, by status; not on the metrics page."""
        self.websockets: WebSocketMetrics | None = None
        """Counts of WebSockets; None on a server without WebSocket routes."""
        self._requests: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._received: dict[str, _Sizes] = {}
        self._sent: dict[str, _Sizes] = {}
        self._all_durations = _Durations(Histogram(FINE_BUCKETS_S))
        self._durations: dict[tuple[str, str], _Durations] = {}

    def observe(
        self, path: str, method: str, status: int, received_bytes: int, sent_bytes: int, duration_s: float
    ) -> None:
        """Count one answered request. `path` is the route's path, or `NO_ROUTE`."""
        if status >= 400:
            self.errors[status] = self.errors.get(status, 0) + 1
        key = (path, method, f"{status // 100}xx")
        known = self._requests.get(key)
        self._requests[key] = (1, time.time()) if known is None else (known[0] + 1, known[1])
        for sizes, num_bytes in ((self._received, received_bytes), (self._sent, sent_bytes)):
            entry = sizes.get(path)
            if entry is None:
                entry = sizes[path] = _Sizes()
            entry.count += 1
            entry.total += num_bytes
        by_route = self._durations.get((path, method))
        if by_route is None:
            by_route = self._durations[path, method] = _Durations(Histogram(COARSE_BUCKETS_S))
        observe_all(((self._all_durations.histogram, duration_s), (by_route.histogram, duration_s)))

    def add(self, other: "HttpMetrics") -> None:
        """Add the counts of another object."""
        if other.websockets is not None:
            self.websockets = self.websockets or WebSocketMetrics()
            self.websockets.add(other.websockets)
        for code, number in other.errors.items():
            self.errors[code] = self.errors.get(code, 0) + number
        for key, (number, created) in other._requests.items():
            known, since = self._requests.get(key, (0, created))
            self._requests[key] = (known + number, min(since, created))
        for ours, theirs in ((self._received, other._received), (self._sent, other._sent)):
            for path, sizes in theirs.items():
                entry = ours.setdefault(path, _Sizes(created=sizes.created))
                entry.count += sizes.count
                entry.total += sizes.total
        self._all_durations.histogram.add(other._all_durations.histogram)
        for route, durations in other._durations.items():
            by_route = self._durations.setdefault(route, _Durations(Histogram(COARSE_BUCKETS_S), durations.created))
            by_route.histogram.add(durations.histogram)

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        if self.websockets is not None:
            yield from self.websockets.collect()
        requests = [(labels, number, created) for labels, (number, created) in self._requests.items()]
        yield metric_of(
            "counter",
            "http_requests",
            "Total number of requests by method, status and handler.",
            ("handler", "method", "status"),
            requests,
        )
        yield _size_summary("http_request_size_bytes", _size_help("incoming requests"), self._received)
        yield _size_summary("http_response_size_bytes", _size_help("outgoing responses"), self._sent)
        fine = [((), self._all_durations.histogram, self._all_durations.created)]
        yield metric_of("histogram", "http_request_duration_highr_seconds", FINE_HELP, (), fine)
        coarse = [(route, each.histogram, each.created) for route, each in self._durations.items()]
        yield metric_of("histogram", "http_request_duration_seconds", COARSE_HELP, ("handler", "method"), coarse)


def _size_help(what: str) -> str:
    """Return the help text of a family of body sizes."""
    return (
        f"Content length of {what} by handler. Only value of header is respected. Otherwise ignored."
        " No percentile calculated. "
    )


def _size_summary(name: str, help_text: str, sizes: dict[str, _Sizes]) -> Metric:
    family = SummaryMetricFamily(name, help_text, labels=("handler",))
    for path, entry in sizes.items():
        family.add_metric((path,), entry.count, entry.total)
        family.add_sample(f"{name}_created", {"handler": path}, entry.created)
    return family


BUCKETS_S = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class OperationKind:
    """A kind of operation: the prefix of its metric names, and the noun of their help texts."""

    prefix: str
    word: str


SLEEP = OperationKind("vllm:sleep_mode_operation", "sleep-mode")
WEIGHTS = OperationKind("vllm:rl_weight_update_operation", "weight-transfer")


@dataclass(frozen=True, slots=True)
class _Family:
    duration: PrometheusHistogram
    in_flight: Gauge


@dataclass(slots=True)
class Operations:
    """Durations and numbers in flight by operation."""

    _families: dict[OperationKind, _Family] = field(default_factory=dict)

    @contextmanager
    def timed(self, kind: OperationKind, operation: str) -> Iterator[None]:
        """Count the operation as in flight during the block, then record its duration, also after an error."""
        family = self._families.get(kind)
        if family is None:
            family = self._families[kind] = _Family(
                PrometheusHistogram(
                    f"{kind.prefix}_duration_seconds",
                    f"Duration of one {kind.word} operation.",
                    ["operation"],
                    buckets=BUCKETS_S,
                    registry=None,
                ),
                Gauge(
                    f"{kind.prefix}s_in_flight",
                    f"{kind.word.capitalize()} operations currently awaited.",
                    ["operation"],
                    registry=None,
                ),
            )
        in_flight = family.in_flight.labels(operation)
        in_flight.inc()
        started_s = perf_counter()
        try:
            yield
        finally:
            in_flight.dec()
            family.duration.labels(operation).observe(perf_counter() - started_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for prometheus_client."""
        for family in self._families.values():
            yield from family.duration.collect()
            yield from family.in_flight.collect()


MODES = ("streaming", "non_streaming")
OUTCOMES = ("tool_call", "no_tool_call")
REQUEST_TYPES = ("chat_completions", "responses", "other")
CHAT, RESPONSES, _OTHER = REQUEST_TYPES


@dataclass(slots=True)
class ToolParsing:
    """Counts of tool parser uses by mode, outcome and request type."""

    counts: dict[tuple[str, str, str], int] = field(
        default_factory=lambda: dict.fromkeys(product(MODES, OUTCOMES, REQUEST_TYPES), 0)
    )
    created: float = field(default_factory=time.time)

    def used(self, request_type: str, num_with_call: int, num_without: int, is_stream: bool) -> None:
        """Count uses of the parser: `num_with_call` with a part of a call, `num_without` without."""
        mode = MODES[0] if is_stream else MODES[1]
        for outcome, number in zip(OUTCOMES, (num_with_call, num_without), strict=True):
            self.counts[mode, outcome, request_type] += number

    def add(self, other: "ToolParsing") -> None:
        """Add the counts of another object."""
        self.created = min(self.created, other.created)
        for key, number in other.counts.items():
            self.counts[key] += number

    def family(self, model_name: str) -> Metric:
        """The counters, for prometheus_client."""
        return metric_of(
            "counter",
            "vllm:tool_call_parser_invocations",
            "Total number of ToolParser invocations. "
            "Non-streaming increments once per choice; streaming increments once per delta.",
            ("model_name", "mode", "outcome", "request_type"),
            [((model_name, *key), number, self.created) for key, number in self.counts.items()],
        )
