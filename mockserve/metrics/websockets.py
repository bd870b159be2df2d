"""Metrics of WebSockets, under the names of vLLM's middleware for them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mockserve.metrics.engine import Histogram, cumulative

BUCKETS_S = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


@dataclass(slots=True)
class WebSocketMetrics:
    """Counts WebSockets that are open, all that were opened, and how long each was."""

    num_active: int = 0
    num_opened: int = 0
    durations_s: Histogram = field(default_factory=lambda: Histogram(BUCKETS_S))
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
        """Count what another has counted, too."""
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
