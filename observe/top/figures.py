"""Rates and percentiles between two readings of a metrics page, and the figures that a mock server has of its own."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from observe.errors import ResponseError

PREFIXES = ("vllm:", "blis_")
REPLIES = "http_requests"
"""The counter of replies by class of status, of vLLM's HTTP instrumentation."""


@dataclass(slots=True)
class EngineSamples:
    """The samples of one engine; those of a name that differ in other labels are added up.

    `buckets` holds, by histogram, how many observations are at most each bound, infinity included.
    """

    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One reading of a metrics page. Samples without an engine label, such as the lag of the mock server, are in engine
    "".

    `errors` are replies by class of status, such as 4xx.
    """

    model_names: tuple[str, ...]
    engines: Mapping[str, EngineSamples]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_of_mock_server(self) -> bool:
        """Whether the page is one of `blis serve`."""
        return "" in self.engines and "blis_send_lag_seconds" in self.engines[""].buckets


def parse_metrics_page(text: str) -> MetricsPage:
    """The figures of vLLM on a page in Prometheus' text format. Raises ResponseError for a page of anything else."""
    engines: dict[str, EngineSamples] = defaultdict(EngineSamples)
    names: dict[str, None] = {}
    errors: dict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            if family.name == REPLIES:
                _add_errors(errors, family.samples)
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
    if not any(_SUCCESS in engine.values for engine in engines.values()):
        raise ResponseError("it holds no metrics of vLLM")
    return MetricsPage(tuple(names), dict(engines), dict(errors))


def _add_errors(errors: dict[str, float], samples: Iterable[Sample]) -> None:
    """Add up replies by class of status, where that is one of errors."""
    for sample in samples:
        status = sample.labels.get("status", "")
        if sample.name == f"{REPLIES}_total" and status.startswith(("4", "5")):
            errors[status] += sample.value


RUNNING = "vllm:num_requests_running"
_SUCCESS = "vllm:request_success_total"
FRACTIONS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile in seconds, or the bucket bound where a histogram has nothing more precise.

    `sign` is `<` for one in the first bucket, of which only its upper bound is known, and `>` for one beyond the last
    finite bound.
    """

    seconds: float
    sign: str = ""

    def __str__(self) -> str:
        return f"{self.sign}{' ' * bool(self.sign)}{self.seconds * 1000:,.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One engine over one interval, or all of them together.

    Percentiles are p50, p90 and p99, empty when nothing was observed. `lag` is only known of the mock server.
    """

    running: float
    waiting: float
    kv_usage_fraction: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    steps_per_s: float
    preemptions_per_s: float
    ttft: Sequence[Percentile] = field(default=())
    itl: Sequence[Percentile] = field(default=())
    lag: Sequence[Percentile] | None = None


ALL = "all"


def stats_between(before: MetricsPage, after: MetricsPage, elapsed_s: float) -> dict[str, EngineStats]:
    """The figures of each engine, and of all where there are several, over the time between two readings."""
    common = after.engines.get("", EngineSamples())
    lag = None
    if "blis_send_lag_seconds" in common.buckets:
        lag = _percentiles("blis_send_lag_seconds", before.engines.get("", EngineSamples()), common)
    named = [name for name, engine in after.engines.items() if _SUCCESS in engine.values]
    pairs = {name: (before.engines.get(name, EngineSamples()), after.engines[name]) for name in named}
    found = {name or "0": _figures([pair], elapsed_s, lag if len(pairs) == 1 else None) for name, pair in pairs.items()}
    return found if len(found) == 1 else {**found, ALL: _figures(list(pairs.values()), elapsed_s, lag)}


Pair = tuple[EngineSamples, EngineSamples]


def _figures(pairs: Sequence[Pair], elapsed_s: float, lag: Sequence[Percentile] | None) -> EngineStats:
    """Combine several engines: the sums of their figures, and the mean usage of their caches."""

    def rate(name: str) -> float:
        return sum(_increase(old.values.get(name, 0.0), new.values.get(name, 0.0)) for old, new in pairs) / elapsed_s

    def now(name: str) -> float:
        """Sum a gauge, which an engine of several processes has from its first step on."""
        return sum(new.values.get(name, 0.0 if RUNNING not in new.values else nan) for _, new in pairs)

    return EngineStats(
        running=now(RUNNING),
        waiting=now("vllm:num_requests_waiting"),
        kv_usage_fraction=now("vllm:kv_cache_usage_perc") / len(pairs),
        requests_per_s=rate(_SUCCESS),
        prompt_tokens_per_s=rate("vllm:prompt_tokens_total"),
        output_tokens_per_s=rate("vllm:generation_tokens_total"),
        steps_per_s=rate("vllm:iteration_tokens_total_count"),
        preemptions_per_s=rate("vllm:num_preemptions_total"),
        ttft=_joint_percentiles("vllm:time_to_first_token_seconds", pairs),
        itl=_joint_percentiles("vllm:inter_token_latency_seconds", pairs),
        lag=lag,
    )


def _increase(before: float, after: float) -> float:
    """Return the growth of a counter; a counter that shrank was reset by a restart of its server."""
    return after - before if after >= before else after


def _percentiles(name: str, before: EngineSamples, after: EngineSamples) -> Sequence[Percentile]:
    return _joint_percentiles(name, [(before, after)])


def _joint_percentiles(name: str, pairs: Sequence[Pair]) -> Sequence[Percentile]:
    total: dict[float, float] = {}
    for old, new in pairs:
        for bound, count in bucket_increase(old.buckets.get(name, {}), new.buckets.get(name, {})).items():
            total[bound] = total.get(bound, 0.0) + count
    if not total or total[max(total)] <= 0:
        return ()
    return [_percentile(total, fraction) for fraction in FRACTIONS]


def _percentile(buckets: Mapping[float, float], fraction: float) -> Percentile:
    bounds = sorted(bound for bound in buckets if bound != inf)
    value = quantile(buckets, fraction)
    if bounds and value == inf:
        return Percentile(bounds[-1], ">")
    if bounds and value <= bounds[0]:
        return Percentile(bounds[0], "<")
    return Percentile(value)


def bucket_increase(before: Mapping[float, float], after: Mapping[float, float]) -> Mapping[float, float]:
    """Return the growth of each bucket between two readings. A histogram that shrank was reset."""
    if not after or after.get(inf, 0.0) < before.get(inf, 0.0):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(buckets: Mapping[float, float], fraction: float) -> float:
    """The value that so large a fraction of the observations does not exceed, as Prometheus' histogram_quantile has it.

    Linear within a bucket, whose counts are cumulative. Infinite when it lies beyond the last finite bound, where
    Prometheus gives that bound.
    """
    bounds = sorted(buckets)
    rank = fraction * buckets[bounds[-1]]
    lower, seen = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > seen:
            # Rounding must not lead out of the bucket.
            return bound if bound == inf else min(bound, lower + (bound - lower) * (rank - seen) / (count - seen))
        lower, seen = bound, count
    return inf


@dataclass(frozen=True, slots=True)
class DashboardStats:
    """A server's settings in words, and percentiles by engine, where `ALL` stands for all of them."""

    settings: str
    ttft: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)
    itl: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)


def parse_dashboard_figures(text: str) -> DashboardStats:
    """Read the reply to /dashboard/figures. Raises ValueError, KeyError or TypeError for anything else."""
    found = json.loads(text)
    server, figures = found["server"], found["figures"]
    ttft = {str(each["engine"]): _dashboard_percentiles(each["ttft_ms"]) for each in figures["engines"]}
    itl = {str(each["engine"]): _dashboard_percentiles(each["itl_ms"]) for each in figures["engines"]}
    now = figures["now"]
    if now:
        ttft[ALL] = _dashboard_percentiles([now[f"ttft_{name}_ms"][0] for name in ("p50", "p90", "p99")])
        itl[ALL] = _dashboard_percentiles([now[f"itl_{name}_ms"][0] for name in ("p50", "p90", "p99")])
    return DashboardStats(_settings(server, figures["errors_by_status"]), ttft, itl)


def _dashboard_percentiles(values_ms: Sequence[float | None] | None) -> Sequence[Percentile]:
    return [Percentile(each / 1000) for each in values_ms or () if each is not None]


def _settings(server: Mapping[str, Any], errors: Mapping[str, int]) -> str:
    gpus = server["tp"] * server["dp"]
    faults = [*(f"{kind} {rate:.0%}" for kind, rate in server["faults"].items()), *server["engine_faults"]]
    parts = [
        f"{server['gpu'] or 'no GPU'}{f' x {gpus}' if gpus > 1 else ''}, tp {server['tp']}",
        "no speed limit" if server["speed"] is None else f"speed {server['speed']:g}x",
        f"faults {', '.join(faults) or 'none'}",
        format_error_counts(errors),
    ]
    return "; ".join(parts)


def format_error_counts(errors: Mapping[str, float]) -> str:
    """Return the number of replies for each status of error."""
    return f"errors {', '.join(f'{status}: {number:,.0f}' for status, number in errors.items()) or 'none'}"


def with_dashboard_stats(figures: Mapping[str, EngineStats], own: DashboardStats | None) -> Mapping[str, EngineStats]:
    """Return the figures with the server's own percentiles, where it has some."""
    if own is None:
        return figures
    return {
        name: replace(each, ttft=own.ttft.get(name, each.ttft), itl=own.itl.get(name, each.itl))
        for name, each in figures.items()
    }
