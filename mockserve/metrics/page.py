"""The text of GET /metrics, the history of its counters, and vLLM's log lines about throughput."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import ceil, exp
from typing import Any, NamedTuple, Protocol, TypeAlias

import orjson
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone
from blis_sim.engine.offloading import OffloadConfig
from blis_sim.options.custom_metrics import CustomMetric, values_of
from mockserve.metrics.counters import (
    BUCKETS_PER_E,
    EngineMetrics,
    Histogram,
    HttpMetrics,
    Lateness,
    Operations,
    ToolParsing,
    metric_of,
)
from mockserve.metrics.families import (
    DRAFT_FAMILIES,
    FAMILIES,
    HISTOGRAMS,
    OFFLOAD_FAMILIES,
    OFFLOAD_INFO_HELP,
    TIERED_FAMILIES,
    EngineState,
    Family,
    Value,
    custom_families,
    displayed_value,
    offload_labels,
    tier_labels,
)
from mockserve.options.server import FakeMetrics, in_vllm_form

# Series of the metrics page whose values were set while the server runs.

MOST_PINS = 1_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A fixed value for series with the name and at least the labels, until an instant of the monotonic clock."""

    name: str
    labels: Mapping[str, str]
    value: float
    until_s: float | None = None

    def fits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a series has the name and the labels."""
        return name == self.name and all(labels.get(key) == value for key, value in self.labels.items())

    def shown(self) -> dict[str, Any]:
        """Return the pin as JSON fields."""
        left = None if self.until_s is None else max(0.0, round(self.until_s - time.monotonic(), 3))
        return {"name": self.name, "labels": dict(self.labels), "value": self.value, "for_s": left}


@dataclass(slots=True)
class MetricOverrides:
    """Values of the metrics page set while the server runs. `fakes` replaces the fake metrics given at the start."""

    pins: list[Pin] = field(default_factory=list)
    fakes: FakeMetrics | None = None

    def pin(self, pins: Sequence[Pin]) -> None:
        """Add pins; a pin replaces an earlier pin of an equal series."""
        new = {(each.name, frozenset(each.labels.items())) for each in pins}
        self.pins = [each for each in self.active() if (each.name, frozenset(each.labels.items())) not in new]
        self.pins += pins

    def active(self) -> list[Pin]:
        """Return the pins that have not expired."""
        now = time.monotonic()
        self.pins = [each for each in self.pins if each.until_s is None or each.until_s > now]
        return self.pins

    def names(self, name: str) -> bool:
        """Whether series with this name are pinned."""
        return any(pin.name == name for pin in self.active())

    def release(self, names: Sequence[str] = ()) -> None:
        """Remove the pins of the named series, or all pins without names."""
        self.pins = [each for each in self.pins if names and each.name not in names]

    def applied(self, metrics: Iterable[Metric]) -> Iterator[Metric]:
        """Replace the values of pinned series; the latest pin of a series counts."""
        pins = self.active()
        by_name: dict[str, list[Pin]] = {}
        for pin in pins:
            by_name.setdefault(pin.name, []).append(pin)
        for metric in metrics:
            if by_name:
                for place, sample in enumerate(metric.samples):
                    fitting = [each for each in by_name.get(sample.name, ()) if each.fits(sample.name, sample.labels)]
                    if fitting:
                        metric.samples[place] = sample._replace(value=fitting[-1].value)
            yield metric


# The metrics page as in the multi-process mode of prometheus_client, which vLLM uses with several API servers.

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
        metric.samples = _histogram_samples(metric.name, samples) if metric.type == "histogram" else samples
        yield metric


def _histogram_samples(name: str, samples: list[PrometheusSample]) -> list[PrometheusSample]:
    """Return the samples of each series with the sum first and the count last."""
    found: list[PrometheusSample] = []
    for _, series in groupby(
        samples, key=lambda sample: {name: value for name, value in sample.labels.items() if name != "le"}
    ):
        found += sorted(series, key=lambda each: _HISTOGRAM_ORDER.index(each.name.removeprefix(name)))
    return found


# A server's metrics over time: a snapshot of its counters every second with activity.

FRACTIONS = (0.5, 0.9, 0.99)


def increase(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    """Return the increase of each count since `before`."""
    return {bucket: count - known for bucket, count in after.items() if count != (known := before.get(bucket, 0))}


def add_to(total: dict[int, int], counts: Mapping[int, int]) -> None:
    """Add counts to a total."""
    for bucket, count in counts.items():
        total[bucket] = total.get(bucket, 0) + count


def percentiles_ms(counts: Mapping[int, int]) -> Sequence[float] | None:
    """Return p50, p90 and p99 in milliseconds, within 1 %; None without a duration."""
    total = sum(counts.values())
    if not total:
        return None
    found: list[float] = []
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        while len(found) < len(FRACTIONS) and seen >= FRACTIONS[len(found)] * total:
            found.append(float(f"{exp((bucket + 0.5) / BUCKETS_PER_E) / 1000:.4g}"))
    return found


PERIOD_S = 1.0
MOST_LOOKS = 600
"""Number of snapshots kept; above it, neighbouring snapshots are merged in pairs."""
MOST_ENGINES = 64
"""Number of engines with separate metrics, the first ones. More engines make snapshots slower and less frequent."""
MOST_COLUMNS = 120
"""Number of instants for which the load of each engine is reported."""
RECENT_SNAPSHOTS = 10
"""Number of latest snapshots for present rates and percentiles."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters of one engine at one instant; `ttft` and `itl` are fine counts."""

    at: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    steps: int = 0
    preemptions: int = 0
    ttft: Mapping[int, int] = field(default_factory=dict)
    itl: Mapping[int, int] = field(default_factory=dict)


_COUNTED = ("prompt_tokens", "output_tokens", "requests", "steps", "preemptions")


@dataclass(slots=True)
class _EngineHistory:
    """Counters of one engine in the latest snapshots, and its load in each kept snapshot."""

    recent: deque[_Counters]
    load: list[float]
    kv_percent: list[float]
    running: int = 0
    waiting: int = 0
    kv_now_percent: float = 0.0


@dataclass(slots=True)
class Snapshot:
    """Metrics of all engines together over `span_s` real seconds until `at`, in Unix seconds.

    `counts` has increases by name. Gauges are values at the end, or means of merged snapshots.
    """

    at: float
    span_s: float
    running: float
    waiting: float
    kv_percent: float
    busy_s: float
    """Seconds in which engines had requests, summed over engines. An engine with requests at one end only counts
    half."""
    errors: int
    lag_p99_ms: float | None
    counts: dict[str, int]
    ttft: dict[int, int]
    itl: dict[int, int]
    ttft_ms: Sequence[float] | None = None
    itl_ms: Sequence[float] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing ran, waited or ended."""
        return not (self.running or self.waiting or self.errors or any(self.counts.values()))


def merged(snapshots: Sequence[Snapshot] | deque[Snapshot]) -> Snapshot:
    """Merge consecutive snapshots into one."""
    ttft: dict[int, int] = {}
    itl: dict[int, int] = {}
    for each in snapshots:
        add_to(ttft, each.ttft)
        add_to(itl, each.itl)
    lags = [each.lag_p99_ms for each in snapshots if each.lag_p99_ms is not None]
    return _with_percentiles(
        Snapshot(
            at=snapshots[-1].at,
            span_s=sum(each.span_s for each in snapshots),
            running=_mean_of([each.running for each in snapshots]),
            waiting=_mean_of([each.waiting for each in snapshots]),
            kv_percent=_mean_of([each.kv_percent for each in snapshots]),
            busy_s=sum(each.busy_s for each in snapshots),
            errors=sum(each.errors for each in snapshots),
            lag_p99_ms=max(lags, default=None),
            counts={name: sum(each.counts[name] for each in snapshots) for name in _COUNTED},
            ttft=ttft,
            itl=itl,
        )
    )


def _with_percentiles(take_snapshot: Snapshot) -> Snapshot:
    take_snapshot.ttft_ms, take_snapshot.itl_ms = percentiles_ms(take_snapshot.ttft), percentiles_ms(take_snapshot.itl)
    return take_snapshot


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _in_groups(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of each group of `size` consecutive values."""
    return [_mean_of(values[start : start + size]) for start in range(0, len(values), size)]


class History:
    """Takes snapshots of the counters of a source while a server listens.

    Seconds without activity are omitted, except one before and one after each period of load, so that the snapshots
    cover the periods of load.
    """

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._recent: deque[Snapshot] = deque(maxlen=RECENT_SNAPSHOTS)
        self._engines: dict[int, _EngineHistory] = {}
        self._looked_at: float | None = None
        self._num_errors = 0
        self._lag_counts: Sequence[int] | None = None
        self._idle: Snapshot | None = None
        """The latest snapshot, if it and the previous one are idle."""
        self._timer: asyncio.TimerHandle | None = None
        self._text: bytes | None = None

    def begin(self, source: "MetricsSource") -> None:
        """Take snapshots of `source` periodically until `end`."""
        self.take_snapshot(source, time.time())
        period_s = PERIOD_S * max(1, ceil(len(source.engines) / MOST_ENGINES))
        self._timer = asyncio.get_running_loop().call_later(period_s, self.begin, source)

    def end(self) -> None:
        """Stop taking snapshots."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_snapshot(self, source: "MetricsSource", now: float) -> None:
        """Take a snapshot at the instant `now`, in Unix seconds."""
        self._text = None
        take_snapshot = self._taken(source, now)
        self._recent.append(take_snapshot)
        self._looked_at = now
        if take_snapshot.is_idle and (not self.snapshots or self.snapshots[-1].is_idle):
            self._idle = take_snapshot
            return
        if self._idle is not None:
            self._keep_snapshot(self._idle)
            self._idle = None
        self._keep_snapshot(take_snapshot)

    def _taken(self, source: "MetricsSource", now: float) -> Snapshot:
        before_at = now if self._looked_at is None else self._looked_at
        counts = dict.fromkeys(_COUNTED, 0)
        ttft: dict[int, int] = {}
        itl: dict[int, int] = {}
        busy_s = 0.0
        for number in [number for number in self._engines if number not in source.engines]:
            del self._engines[number]
        for number, engine in source.engines.items():
            was_busy = number in self._engines and self._engines[number].running > 0
            known, before = self._noted(number, engine, now, before_at)
            after = known.recent[-1]
            busy_s += (now - before_at) * (was_busy + (known.running > 0)) / 2
            for name in _COUNTED:
                counts[name] += max(0, getattr(after, name) - getattr(before, name))
            add_to(ttft, increase(before.ttft, after.ttft))
            add_to(itl, increase(before.itl, after.itl))
        known_engines = self._engines.values()
        take_snapshot = Snapshot(
            at=now,
            span_s=now - before_at,
            running=sum(each.running for each in known_engines),
            waiting=sum(each.waiting for each in known_engines),
            kv_percent=_mean_of([each.kv_now_percent for each in known_engines]) if known_engines else 0.0,
            busy_s=busy_s,
            errors=self._new_errors(source),
            lag_p99_ms=self._lag_p99_ms(source),
            counts=counts,
            ttft=ttft,
            itl=itl,
        )
        return _with_percentiles(take_snapshot)

    def _noted(
        self, number: int, engine: "MeasuredEngine", now: float, before_at: float
    ) -> tuple[_EngineHistory, _Counters]:
        """Record an engine's counters. Returns its history and the counters of the previous snapshot."""
        known = self._engines.get(number)
        if known is None:
            absent = [0.0] * len(self.snapshots)
            known = _EngineHistory(deque([_Counters(before_at)], RECENT_SNAPSHOTS + 1), absent, list(absent))
            self._engines[number] = known
        simulated, metrics = engine.driver.engine, engine.metrics
        stats, before = simulated.stats, known.recent[-1]
        known.running, known.waiting = stats.num_running, stats.num_waiting
        known.kv_now_percent = 100 * stats.kv_usage_fraction
        known.recent.append(
            _Counters(
                now,
                metrics.prompt_tokens,
                metrics.generation_tokens,
                sum(metrics.request_success.values()),
                metrics.iteration_tokens.count,
                stats.num_preemptions,
                before.ttft if metrics.prompt_tokens == before.prompt_tokens else dict(metrics.first_token_fine.counts),
                before.itl
                if metrics.generation_tokens == before.output_tokens
                else dict(metrics.token_gap_fine.counts),
            )
        )
        return known, before

    def _new_errors(self, source: "MetricsSource") -> int:
        before, self._num_errors = self._num_errors, sum(source.http.errors.values())
        return self._num_errors - before

    def _lag_p99_ms(self, source: "MetricsSource") -> float | None:
        histogram = source.lateness.histogram
        before = self._lag_counts or [0] * len(histogram.counts)
        new = histogram.since(before)
        self._lag_counts = list(histogram.counts)
        return 1000 * new.quantile(0.99) if new.count else None

    def _keep_snapshot(self, take_snapshot: Snapshot) -> None:
        self.snapshots.append(take_snapshot)
        for engine in self._engines.values():
            engine.load.append(0.0 if take_snapshot.is_idle else engine.running + engine.waiting)
            engine.kv_percent.append(engine.kv_now_percent)
        if len(self.snapshots) > MOST_LOOKS:
            self.snapshots = [merged(self.snapshots[start : start + 2]) for start in range(0, len(self.snapshots), 2)]
            for engine in self._engines.values():
                engine.load, engine.kv_percent = _in_groups(engine.load, 2), _in_groups(engine.kv_percent, 2)

    def text(self, errors: Mapping[int, int]) -> bytes:
        """Return everything as JSON, with the number of replies by status of error."""
        if self._text is None:
            self._text = orjson.dumps(self._described(errors), option=orjson.OPT_NON_STR_KEYS)
        return self._text

    def _present_snapshot(self) -> Snapshot:
        """Merge the recent snapshots, with the gauges of the latest."""
        now, latest = merged(self._recent), self._recent[-1]
        now.running, now.waiting, now.kv_percent = latest.running, latest.waiting, latest.kv_percent
        return now

    def _described(self, errors: Mapping[int, int]) -> Mapping[str, Any]:
        group = max(1, ceil(len(self.snapshots) / MOST_COLUMNS))
        shown = list(self._engines.items())[:MOST_ENGINES]
        return {
            "at": [round(each.at, 2) for each in self.snapshots],
            "series": _series_of_snapshots(self.snapshots),
            "now": _series_of_snapshots([self._present_snapshot()]) if self._recent else {},
            "errors_by_status": errors,
            "num_engines": len(self._engines),
            "columns_at": [
                round(self.snapshots[start : start + group][-1].at, 2) for start in range(0, len(self.snapshots), group)
            ],
            "engines": [_engine_metrics(number, engine, group) for number, engine in shown],
        }


def _series_of_snapshots(snapshots: Sequence[Snapshot]) -> Mapping[str, Sequence[float | None]]:
    """Return each metric of the snapshots. Rates are per second of real time, latencies in simulated milliseconds."""

    def rates(name: str) -> Sequence[float | None]:
        return [_rounded_rate(each.counts[name], each.span_s) for each in snapshots]

    found: dict[str, Sequence[float | None]] = {
        "running": [round(each.running, 1) for each in snapshots],
        "waiting": [round(each.waiting, 1) for each in snapshots],
        "kv_percent": [round(each.kv_percent, 2) for each in snapshots],
        "lag_p99_ms": [None if each.lag_p99_ms is None else round(each.lag_p99_ms, 2) for each in snapshots],
        "errors_per_s": [_rounded_rate(each.errors, each.span_s) for each in snapshots],
        "step_ms": [
            round(1000 * each.busy_s / steps, 3) if each.busy_s and (steps := each.counts["steps"]) else None
            for each in snapshots
        ],
    }
    found |= {f"{name}_per_s": rates(name) for name in _COUNTED}
    for place, name in enumerate(("p50", "p90", "p99")):
        found[f"ttft_{name}_ms"] = [None if each.ttft_ms is None else each.ttft_ms[place] for each in snapshots]
        found[f"itl_{name}_ms"] = [None if each.itl_ms is None else each.itl_ms[place] for each in snapshots]
    return found


def _rounded_rate(count: float, span_s: float) -> float | None:
    return round(count / span_s, 3) if span_s > 0 else None


def _engine_metrics(number: int, engine: _EngineHistory, group: int) -> Mapping[str, Any]:
    """Return the present metrics of an engine, and its load over time."""
    first, last = engine.recent[0], engine.recent[-1]
    return {
        "engine": number,
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_percent": round(engine.kv_now_percent, 2),
        "requests_per_s": _rounded_rate(last.requests - first.requests, last.at - first.at),
        "output_tokens_per_s": _rounded_rate(last.output_tokens - first.output_tokens, last.at - first.at),
        "ttft_ms": percentiles_ms(increase(first.ttft, last.ttft)),
        "itl_ms": percentiles_ms(increase(first.itl, last.itl)),
        "load": [round(each, 1) for each in _in_groups(engine.load, group)],
        "kv_load_percent": [round(each, 1) for each in _in_groups(engine.kv_percent, group)],
    }


# vLLM's log lines about throughput: one for each engine with activity, at a fixed interval.

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counters of one engine at the instant of a line."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _EngineLog:
    """The latest line of one engine."""

    counts: _Counts
    at_s: float
    was_active: bool = False


class StatLog:
    """Logs the throughput of engines every `interval_s` real seconds. Lines of idle engines have the level DEBUG."""

    def __init__(self, engines: "Mapping[int, MeasuredEngine]", interval_s: float) -> None:
        self._engines = engines
        self._interval_s = interval_s
        self._known: dict[int, _EngineLog] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start logging."""
        now_s = time.monotonic()
        self._known = {number: _EngineLog(_engine_counts(each), now_s) for number, each in self._engines.items()}
        self._schedule()

    def end(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def log(self, now_s: float) -> None:
        """Log one line for each engine; `now_s` is the present reading of a monotonic clock."""
        known, self._known = self._known, {}
        for number, engine in self._engines.items():
            self._known[number] = _log_engine(number, engine, known.get(number), now_s)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._wake)

    def _wake(self) -> None:
        self.log(time.monotonic())
        self._schedule()


def _engine_counts(engine: "MeasuredEngine") -> _Counts:
    metrics, counters = engine.metrics, engine.driver.engine.counters
    return _Counts(
        metrics.prompt_tokens_by_source["local_compute"],
        metrics.generation_tokens,
        counters.num_drafts,
        counters.num_draft_tokens,
        counters.num_accepted_tokens,
        tuple(counters.num_accepted_per_position),
    )


def _log_engine(number: int, engine: "MeasuredEngine", before: _EngineLog | None, now_s: float) -> _EngineLog:
    """Log the lines of one engine, and return what its next line needs."""
    counts = _engine_counts(engine)
    if before is None:  # an engine that joined since the last line
        return _EngineLog(counts, now_s)
    span_s = now_s - before.at_s
    prompt_rate = _rate_per_s(counts.prompt_tokens - before.counts.prompt_tokens, span_s)
    generation_rate = _rate_per_s(counts.generation_tokens - before.counts.generation_tokens, span_s)
    is_active = bool(prompt_rate or generation_rate)
    level = logging.INFO if is_active or before.was_active else logging.DEBUG
    figures: dict[str, Any] = {"engine": number, "prompt_tokens_per_s": prompt_rate}
    figures |= {"generation_tokens_per_s": generation_rate}
    parts = [f"Avg prompt throughput: {prompt_rate:.1f} tokens/s"]
    parts += [f"Avg generation throughput: {generation_rate:.1f} tokens/s", *_state_parts(engine)]
    line = in_vllm_form("loggers.py:335", **figures)
    _logger.log(level, "Engine %03d: %s", number, ", ".join(parts), extra=line)
    if counts.drafts > before.counts.drafts:
        drafts = _draft_figures(before.counts, counts, span_s)
        _logger.log(level, "SpecDecoding metrics: %s", drafts, extra=in_vllm_form("metrics.py:120", engine=number))
    return _EngineLog(counts, now_s, is_active)


class IterationLog:
    """Logs each step of one engine that reports its batches."""

    def __init__(self, number: int, engine: Engine) -> None:
        self._number = number
        self._engine = engine

    def log(self, batch: BatchDone) -> None:
        """Log the line of vLLM: a context request has no output token before the step."""
        num_prompt_tokens = sum(num_tokens for _, num_tokens in batch.prompts)
        figures: dict[str, Any] = {
            "engine": self._number,
            "iteration": batch.index,
            "context_requests": len(batch.prompts),
            "context_tokens": num_prompt_tokens,
            "generation_requests": len(batch.decoding),
            "generation_tokens": batch.shape.num_tokens - num_prompt_tokens,
            "elapsed_ms": (batch.at - batch.started_at) / 1000,
            "kv_cache_usage_percent": 100 * batch.num_blocks_after / self._engine.stats.kv_blocks_total,
        }
        _logger.info(
            "Engine %03d: Iteration(%d): %d context requests, %d context tokens, %d generation requests, "
            "%d generation tokens, iteration elapsed time: %.2f ms, GPU KV cache usage: %.1f%%",
            *figures.values(),
            extra=in_vllm_form("loggers.py:201", **figures),
        )


def _rate_per_s(number: int, span_s: float) -> float:
    return number / span_s if span_s > 0 else 0.0


def _state_parts(engine: "MeasuredEngine") -> list[str]:
    stats, metrics = engine.driver.engine.stats, engine.metrics
    parts = [f"Running: {stats.num_running} reqs", f"Waiting: {stats.num_waiting} reqs"]
    if stats.num_deferred:
        parts.append(f"Deferred: {stats.num_deferred} reqs")
    parts.append(f"GPU KV cache usage: {100 * stats.kv_usage_fraction:.1f}%")
    if (local := metrics.recent_hit_rate.percent) is not None:
        parts.append(f"Prefix cache hit rate: {local:.1f}%")
    if (external := metrics.recent_external_hit_rate.percent) is not None:
        parts.append(f"External prefix cache hit rate: {external:.1f}%")
    return parts


def _draft_figures(before: _Counts, after: _Counts, span_s: float) -> str:
    """Return the figures of speculative decoding between two instants."""
    num_drafts = after.drafts - before.drafts
    num_tokens = after.draft_tokens - before.draft_tokens
    num_accepted = after.accepted_tokens - before.accepted_tokens
    earlier = before.accepted_per_position or (0,) * len(after.accepted_per_position)
    rates = [(now - then) / num_drafts for now, then in zip(after.accepted_per_position, earlier, strict=True)]
    acceptance = 100 * num_accepted / num_tokens if num_tokens else float("nan")
    return (
        f"Mean acceptance length: {1 + num_accepted / num_drafts:.2f}, "
        f"Accepted throughput: {_rate_per_s(num_accepted, span_s):.2f} tokens/s, "
        f"Drafted throughput: {_rate_per_s(num_tokens, span_s):.2f} tokens/s, "
        f"Accepted: {num_accepted} tokens, Drafted: {num_tokens} tokens, "
        f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
        f"Avg Draft acceptance rate: {acceptance:.1f}%"
    )


# The text of GET /metrics: vLLM's names, types, labels and buckets, and the lateness of this server.

PREFIX = "vllm:"
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")


class HasEngine(Protocol):
    """An object with an engine, which a restart may replace."""

    @property
    def engine(self) -> Engine: ...


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine with its request metrics. `created` is the start of counting, in Unix seconds."""

    driver: HasEngine
    metrics: EngineMetrics
    created: float = field(default_factory=time.time)


class CutStreamCounter(Protocol):
    """Counter of streams that were cut because their clients did not read."""

    @property
    def num_cut(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _RemoteCutStreams:
    """The number of cut streams of other processes."""

    num_cut: int


InThread: TypeAlias = Callable[..., Awaitable[bytes]]
"""Calls a function with arguments on a thread, in the present context."""

Reading: TypeAlias = Callable[[], Metric]
"""Makes a metric of values that have been read."""

_readings_of_page: ContextVar[Sequence[Reading] | None] = ContextVar("readings_of_page", default=None)
"""Readings of the page that is written in this context; None for the present values."""
_MOST_ENGINES_IN_PLACE = 2
"""Engines whose page takes a few milliseconds."""


@dataclass(slots=True)
class _PagesInTurn:
    """Makes one page after the other. Scrapes that wait for their turn share the next page of their kind."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next: dict[object, "asyncio.Task[bytes]"] = field(default_factory=dict)

    async def get(self, kind: object, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Return a page of a kind, whose making begins after this call."""
        page = self._next.get(kind)
        if page is None:
            page = self._next[kind] = asyncio.create_task(self._make_page(kind, make))
        return await asyncio.shield(page)

    async def _make_page(self, kind: object, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        async with self._lock:
            del self._next[kind]
            return await make()


class Metrics(Protocol):
    """Metrics as handlers use them: counters, and the page."""

    @property
    def http(self) -> HttpMetrics: ...

    @property
    def rejections(self) -> dict[str, int]:
        """Requests rejected because of a full queue, by limit."""
        ...

    @property
    def tool_parsing(self) -> ToolParsing | None:
        """Counter of tool parser uses; None without a tool parser."""
        ...

    @property
    def operations(self) -> Operations:
        """Times of control operations."""
        ...

    async def page(self, names: Collection[str] = (), accept: str = "", in_thread: InThread | None = None) -> bytes:
        """Return the metrics page, or only the named samples, in the format selected by an `Accept` header.

        A page of many engines is written by `in_thread`, if that is given.
        """
        ...

    async def history_json(self) -> bytes:
        """Return the metrics over time as JSON."""
        ...

    def record_history(self, is_recording: bool) -> None:
        """Start or stop recording metrics over time, and logging throughput."""
        ...


class ProcessCounts(NamedTuple):
    """The counts of one of several processes."""

    http: HttpMetrics
    rejections: Mapping[str, int]
    lag_s: Histogram
    num_streams_cut: int
    tool_parsing: ToolParsing


@dataclass(frozen=True, slots=True, eq=False)
class MetricsSource:
    """Reads engines and counters at each scrape.

    Engines may be added and removed. The series of a removed engine disappear from the page; counters of the whole
    server remain. `cache_config` becomes the labels of `vllm:cache_config_info`.
    """

    model_name: str
    engines: dict[int, MeasuredEngine]
    """Engines by the value of the label `engine`."""
    config: EngineConfig
    """Configuration of the first engine, which determines the metric families."""
    cache_config: Mapping[str, str]
    lateness: Lateness
    fakes: FakeMetrics
    slow_readers: CutStreamCounter
    tool_parsing: ToolParsing | None = None
    overrides: MetricOverrides = field(default_factory=MetricOverrides)
    http: HttpMetrics = field(default_factory=HttpMetrics)
    operations: Operations = field(default_factory=Operations)
    history: History = field(default_factory=History)
    is_multiprocess: bool = False
    """Whether the page has the form of prometheus_client's multi-process mode, without metrics of the process."""
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTION_REASONS, 0))
    """Requests rejected because of a full queue, by limit."""
    created: float = field(default_factory=time.time)
    """Start of counting for the whole server, in Unix seconds."""
    shows_engines: bool = True
    """Whether the page has vLLM's families."""
    stat_log: StatLog | None = None
    """Writer of log lines about throughput."""
    custom_families: Sequence[Family] = ()
    """Metrics of other packages."""
    _registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True), init=False)
    _pages: _PagesInTurn = field(default_factory=_PagesInTurn, init=False)

    async def page(self, names: Collection[str] = (), accept: str = "", in_thread: InThread | None = None) -> bytes:
        """Return `exposition`. Of many engines only the values are read at once, and the page is written elsewhere."""
        if in_thread is None or len(self.engines) <= _MOST_ENGINES_IN_PLACE:
            return self.exposition(names, accept)
        write = in_thread

        async def make() -> bytes:
            token = _readings_of_page.set(self._readings())
            try:
                return await write(self.exposition, names, accept)
            finally:
                _readings_of_page.reset(token)

        return await self._pages.get((frozenset(names), accept), make)

    async def history_json(self) -> bytes:
        """Return the metrics over time as JSON."""
        return self.history.text(self.http.errors)

    def record_history(self, is_recording: bool) -> None:
        """Start or stop recording metrics over time, and logging throughput."""
        if is_recording:
            self.history.begin(self)
        else:
            self.history.end()
        if self.stat_log is not None:
            self.stat_log.begin() if is_recording else self.stat_log.end()

    def exposition(self, names: Collection[str] = (), accept: str = "") -> bytes:
        """Return the metrics page, or only the named samples, in the format selected by an `Accept` header."""
        registry: Collector = self._registry.restricted_registry(names) if names else self._registry
        encode, _ = choose_encoder(accept)
        return encode(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield vLLM's families and this server's, for prometheus_client."""
        readings = _readings_of_page.get()
        metrics = self.overrides.applied(make() for make in (self._readings() if readings is None else readings))
        if not self.shows_engines:
            metrics = (each for each in metrics if not each.name.startswith(PREFIX))
        return as_in_multiprocess_mode(metrics) if self.is_multiprocess else metrics

    def _readings(self) -> "list[Reading]":
        """Read all values at once. Most of the work of a page is to make metrics of them, and text of metrics."""
        states = {number: _state_of(each) for number, each in self.engines.items()}
        drafts = DRAFT_FAMILIES if self.config.speculation is not None else ()
        offload = self.config.offload
        offloading: Sequence[Family] = ()
        if offload is not None:
            offloading = TIERED_FAMILIES if offload.devices else OFFLOAD_FAMILIES
        return [
            *(self._family(family, states) for family in (*drafts, *offloading)),
            *(() if offload is None else [_constant_reading(self._offload_info(offload, states))]),
            *(self._family(family, states) for family in FAMILIES),
            _constant_reading(self._rejections()),
            *(self._family(family, states) for family in HISTOGRAMS),
            *(self._family(family, states) for family in self.custom_families),
            *map(_constant_reading, self._others()),
        ]

    def _offload_info(self, offload: OffloadConfig, states: Mapping[int, EngineState]) -> Metric:
        """Return the settings of CPU memory and the tiers behind it, of each engine from its first step on."""
        info = offload_labels(self.config, offload)
        labels, series = ["model_name", "engine", *info], [[*info.values()]]
        if offload.devices:
            labels.append("tier")
            primary, *devices = tier_labels(len(offload.devices))
            series = [[*info.values(), primary], *([*[""] * len(info), each] for each in devices)]
        samples = [
            ([self.model_name, str(number), *each], 1.0, 0.0)
            for number in self.engines
            if states[number].counters.offload.num_blocks
            for each in series
        ]
        return metric_of("gauge", "vllm:kv_offload_config_info", OFFLOAD_INFO_HELP, labels, samples)

    def _others(self) -> Iterator[Metric]:
        yield from self._adapters()
        names = sorted([*self.cache_config, "engine"])
        values = [{**self.cache_config, "engine": str(number)} for number in self.engines]
        samples = [([each[name] for name in names], 1.0, 0.0) for each in values]
        yield metric_of("gauge", "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", names, samples)
        yield from self.http.collect()
        if self.tool_parsing is not None:
            yield self.tool_parsing.family(self.model_name)
        yield from self.operations.collect()
        yield metric_of(
            "histogram",
            "blis_send_lag_seconds",
            "Real time by which frames leave later than they are due.",
            (),
            [((), self.lateness.histogram, self.created)],
        )
        yield metric_of(
            "counter",
            "blis_slow_readers_cut",
            "Streams cut because their clients left too much unread.",
            (),
            [((), self.slow_readers.num_cut, self.created)],
        )

    def _family(self, family: Family, states: Mapping[int, EngineState]) -> "Reading":
        own = family.label.split()
        labels = ["model_name", "engine", *own]
        values = [
            ([self.model_name, str(number), *(last.split(" ", len(own) - 1) if last else [])], value, each.created)
            for number, each in self.engines.items()
            for last, value in _label_values(
                displayed_value(self._shown_fakes, family.name, family.read(states[number]), time.time() - each.created)
            )
            if self._is_set(family, each, states[number])
        ]
        return partial(metric_of, family.kind, f"{PREFIX}{family.name}", family.help, labels, values)

    def _is_set(self, family: Family, engine: MeasuredEngine, state: EngineState) -> bool:
        """Whether the page has the samples of an engine. In multi-process mode samples of steps come with the first
        step."""
        if not self.is_multiprocess or family.name not in STEP_GAUGES:
            return True
        is_chosen = family.name in self._shown_fakes.value_functions or self.overrides.names(f"vllm:{family.name}")
        return is_chosen or engine.metrics.has_stepped or state.stats.num_running + state.stats.num_waiting > 0

    @property
    def _shown_fakes(self) -> FakeMetrics:
        return self.overrides.fakes or self.fakes

    def _rejections(self) -> Metric:
        return metric_of(
            "counter",
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ("model_name", "reason"),
            [((self.model_name, reason), number, self.created) for reason, number in self.rejections.items()],
        )

    def _adapters(self) -> Iterator[Metric]:
        """Yield the metric of adapter lists, each with the time it was last seen; yield nothing without adapters."""
        lora = self.config.lora
        fakes = self._shown_fakes
        if lora is None and fakes.loras is None:
            return
        most = str(lora.max_loras if lora is not None else 1)
        if fakes.loras is not None:
            seen = [(fake.waiting, fake.running, fake.unix_time_s) for fake in fakes.loras]
        else:
            last_seen: dict[str, float] = {}
            for adapters in filter(None, (engine.metrics.adapters for engine in self.engines.values())):
                for names, at in adapters.last_seen().items():
                    last_seen[names] = max(at, last_seen.get(names, 0.0))
            seen = [(names, names, at) for names, at in last_seen.items()]
        yield metric_of(
            "gauge",
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
            [((most, waiting, running), at, 0.0) for waiting, running, at in seen],
        )


def _state_of(engine: MeasuredEngine) -> EngineState:
    simulated = engine.driver.engine
    return EngineState(simulated.stats, simulated.counters, engine.metrics)


def _label_values(value: Value) -> Iterable[tuple[str, float | Histogram]]:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return [(label, each.copy() if isinstance(each, Histogram) else each) for label, each in value.items()]
    return [("", value.copy() if isinstance(value, Histogram) else value)]


def _constant_reading(metric: Metric) -> Reading:
    return lambda: metric


def sum_of_parts(source: MetricsSource, parts: Sequence[ProcessCounts]) -> MetricsSource:
    """Return a copy of `source` with the summed counts of several processes."""
    lateness, slow_readers = Lateness(), _RemoteCutStreams(sum(part.num_streams_cut for part in parts))
    tool_parsing = None if source.tool_parsing is None else ToolParsing()
    found = replace(
        source,
        lateness=lateness,
        slow_readers=slow_readers,
        tool_parsing=tool_parsing,
        http=HttpMetrics(),
        rejections={},
    )
    for part in parts:
        if tool_parsing is not None:
            tool_parsing.add(part.tool_parsing)
        lateness.histogram.add(part.lag_s)
        found.http.add(part.http)
        for reason, number in part.rejections.items():
            found.rejections[reason] = found.rejections.get(reason, 0) + number
    found._registry.register(found)
    return found


def new_source(
    model_name: str,
    engines: Mapping[int, MeasuredEngine],
    cache_config: Mapping[str, str],
    lateness: Lateness,
    fakes: FakeMetrics,
    slow_readers: CutStreamCounter,
    tool_parsing: ToolParsing | None = None,
    shows_engines: bool = True,
    log_interval_s: float = 0.0,
    is_multiprocess: bool = False,
    metrics: Sequence[CustomMetric] = (),
) -> MetricsSource:
    """Return a source for at least one engine, with metrics of the process unless `is_multiprocess`.

    `log_interval_s` is the time between log lines about throughput; 0 for none. `metrics` are those of other packages.
    Raises OptionError for one that fails.
    """
    values_of(metrics, _state_of(next(iter(engines.values()))))
    config = next(iter(engines.values())).driver.engine.config
    measured = dict(engines)
    source = MetricsSource(
        model_name,
        measured,
        config,
        cache_config,
        lateness,
        fakes,
        slow_readers,
        tool_parsing,
        shows_engines=shows_engines,
        is_multiprocess=is_multiprocess,
        stat_log=StatLog(measured, log_interval_s) if log_interval_s else None,
        custom_families=custom_families(metrics),
    )
    registry = source._registry
    if not is_multiprocess:
        GCCollector(registry=registry)
        PlatformCollector(registry=registry)
        ProcessCollector(registry=registry)
    registry.register(source)
    return source
