"""Metrics of the server: HTTP requests by route, WebSockets, operations, tool parsing, as vLLM counts them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from time import perf_counter

from prometheus_client import Gauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from mockserve.metrics.engine import Histogram, cumulative

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
        active = GaugeMetricFamily(
            "vllm:websocket_connections_active", "Number of currently active WebSocket connections."
        )
        active.add_metric([], self.num_active)
        yield active
        opened = CounterMetricFamily("vllm:websocket_connections", "Total number of WebSocket connections.")
        opened.add_metric([], self.num_opened, created=self.created)
        yield opened
        name = "vllm:websocket_connection_duration_seconds"
        durations = HistogramMetricFamily(name, "Duration of WebSocket connections in seconds.")
        durations.add_metric([], cumulative(self.durations_s), self.durations_s.total)
        durations.add_sample(f"{name}_created", {}, self.created)
        yield durations


FINE_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip
COARSE_BUCKETS_S = (0.1, 0.5, 1)
UNCOUNTED_PARTS = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Parts of paths that vLLM does not count; /load also matches /v1/load_lora_adapter."""

NO_ROUTE = "none"


def counted_path(route: str | None, path: str) -> str | None:
    """Return the path under which a request to `path` counts: its route's, or `NO_ROUTE`; None if it does not count."""
    if any(part in (path if route is None else route) for part in UNCOUNTED_PARTS):
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
        self._all_durations.histogram.observe(duration_s)
        by_route = self._durations.get((path, method))
        if by_route is None:
            by_route = self._durations[path, method] = _Durations(Histogram(COARSE_BUCKETS_S))
        by_route.histogram.observe(duration_s)

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
        requests = CounterMetricFamily(
            "http_requests",
            "Total number of requests by method, status and handler.",
            labels=("handler", "method", "status"),
        )
        for labels, (number, created) in self._requests.items():
            requests.add_metric(labels, number, created=created)
        yield requests
        yield _sizes("http_request_size_bytes", _size_help("incoming requests"), self._received)
        yield _sizes("http_response_size_bytes", _size_help("outgoing responses"), self._sent)
        name = "http_request_duration_highr_seconds"
        fine = HistogramMetricFamily(name, FINE_HELP)
        _add_durations(fine, name, {}, self._all_durations)
        yield fine
        name = "http_request_duration_seconds"
        coarse = HistogramMetricFamily(name, COARSE_HELP, labels=("handler", "method"))
        for (path, method), durations in self._durations.items():
            _add_durations(coarse, name, {"handler": path, "method": method}, durations)
        yield coarse


def _size_help(what: str) -> str:
    """Return the help text of a family of body sizes."""
    return (
        f"Content length of {what} by handler. Only value of header is respected. Otherwise ignored."
        " No percentile calculated. "
    )


def _sizes(name: str, help_text: str, sizes: dict[str, _Sizes]) -> Metric:
    family = SummaryMetricFamily(name, help_text, labels=("handler",))
    for path, entry in sizes.items():
        family.add_metric((path,), entry.count, entry.total)
        family.add_sample(f"{name}_created", {"handler": path}, entry.created)
    return family


def _add_durations(family: HistogramMetricFamily, name: str, labels: dict[str, str], durations: _Durations) -> None:
    family.add_metric(list(labels.values()), cumulative(durations.histogram), durations.histogram.total)
    family.add_sample(f"{name}_created", labels, durations.created)


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
            family = self._families[kind] = _new_family(kind)
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


def _new_family(kind: OperationKind) -> _Family:
    return _Family(
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


MODES = ("streaming", "non_streaming")
OUTCOMES = ("tool_call", "no_tool_call")
REQUEST_TYPES = ("chat_completions", "responses", "other")
CHAT, RESPONSES, _OTHER = REQUEST_TYPES


def _nothing_yet() -> dict[tuple[str, str, str], int]:
    return dict.fromkeys(product(MODES, OUTCOMES, REQUEST_TYPES), 0)


@dataclass(slots=True)
class ToolParsing:
    """Counts of tool parser uses by mode, outcome and request type."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=_nothing_yet)
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
        metric = CounterMetricFamily(
            "vllm:tool_call_parser_invocations",
            "Total number of ToolParser invocations. "
            "Non-streaming increments once per choice; streaming increments once per delta.",
            labels=["model_name", "mode", "outcome", "request_type"],
        )
        for (mode, outcome, request_type), number in self.counts.items():
            metric.add_metric([model_name, mode, outcome, request_type], number, created=self.created)
        return metric
