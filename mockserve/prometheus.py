"""The text of GET /metrics: vLLM's names, types, labels and buckets, and our own lateness beside them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from engine.stats import EngineStats
from mockserve.draft_metrics import draft_families
from mockserve.engine_metrics import EngineMetrics
from mockserve.histogram import Histogram
from mockserve.realtime import RealtimeDriver

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

HELP = {
    "iteration_tokens_total": "Prompt and output tokens per engine step.",
    "time_to_first_token_seconds": "Time from arrival to the first token.",
    "inter_token_latency_seconds": "Time between consecutive tokens of a request.",
    "request_time_per_output_token_seconds": "Mean time per output token after the first, per request.",
    "e2e_request_latency_seconds": "Time from arrival to the last token.",
    "request_queue_time_seconds": "Time spent waiting before the first admission.",
    "request_prefill_time_seconds": "Time from the first admission to the first token.",
    "request_decode_time_seconds": "Time from the first to the last token.",
    "request_inference_time_seconds": "Time from the first admission to the last token.",
    "request_prompt_tokens": "Prompt tokens per finished request.",
    "request_generation_tokens": "Output tokens per finished request.",
    "request_params_max_tokens": "Output limit per finished request.",
    "request_num_preemptions": "Preemptions per finished request.",
}


@dataclass(frozen=True, slots=True, eq=False)
class MetricsSource:
    """Reads the driver, its engine and the counters at each scrape; nothing is kept up to date in between.

    `cache_config` becomes the labels of `vllm:cache_config_info`.
    """

    model_name: str
    driver: RealtimeDriver
    metrics: EngineMetrics
    cache_config: Mapping[str, str]
    created: float

    def exposition(self) -> bytes:
        """The metrics page."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        stats: EngineStats = self.driver.engine.stats
        yield self._gauge("num_requests_running", "Requests in the running batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests waiting to be scheduled.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "KV cache in use, 1 is all of it.", stats.kv_usage_fraction)
        yield from self._counters(stats)
        yield self._success()
        if self.driver.engine.config.speculation is not None:
            yield from draft_families(self.driver.engine.counters, self._labels, self.created)
        for name, histogram in self.metrics.histograms():
            yield self._histogram(f"vllm:{name}", HELP[name], histogram, self._labels)
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "KV cache configuration, as labels.", labels=[*self.cache_config, "engine"]
        )
        info.add_metric([*self.cache_config.values(), "0"], 1)
        yield info
        lateness = self.driver.lateness
        yield self._histogram(
            "blis_send_lag_seconds", "Real time by which frames leave later than they are due.", lateness.histogram, {}
        )

    @property
    def _labels(self) -> dict[str, str]:
        return {"model_name": self.model_name, "engine": "0"}

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        metrics = self.metrics
        rows = (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", metrics.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hit_tokens),
            ("num_preemptions", "Requests preempted.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens processed.", metrics.prompt_tokens),
            ("generation_tokens", "Tokens generated.", metrics.generation_tokens),
        )
        for name, help_text, value in rows:
            family = CounterMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value, created=self.created)
            yield family

    def _success(self) -> Metric:
        labels = {**self._labels, "finished_reason": ""}
        family = CounterMetricFamily("vllm:request_success", "Requests finished, by reason.", labels=list(labels))
        for reason, count in self.metrics.request_success.items():
            family.add_metric([*self._labels.values(), reason], count, created=self.created)
        return family

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _histogram(self, name: str, help_text: str, histogram: Histogram, labels: Mapping[str, str]) -> Metric:
        family = HistogramMetricFamily(name, help_text, labels=list(labels))
        family.add_metric(list(labels.values()), _cumulative(histogram), histogram.total)
        family.add_sample(f"{name}_created", dict(labels), self.created)
        return family


def new_source(
    model_name: str, driver: RealtimeDriver, metrics: EngineMetrics, cache_config: Mapping[str, str]
) -> MetricsSource:
    """A source whose counters count as created now."""
    return MetricsSource(model_name, driver, metrics, cache_config, time.time())


def _cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Buckets as the exposition format wants them: each counts all observations up to its bound."""
    seen = 0
    buckets = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call]
    return buckets
