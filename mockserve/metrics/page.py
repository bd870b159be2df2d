"""The text of GET /metrics: vLLM's names, types, labels and buckets, and the lateness of this server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from mockserve.metrics.engine import EngineMetrics, Histogram, Lateness, cumulative
from mockserve.metrics.families import DRAFT_FAMILIES, FAMILIES, HISTOGRAMS, EngineState, Family, Value, displayed_value
from mockserve.metrics.history import History
from mockserve.metrics.multiprocess import STEP_GAUGES, as_in_multiprocess_mode
from mockserve.metrics.overrides import MetricOverrides
from mockserve.metrics.server import HttpMetrics, Operations, ToolParsing
from mockserve.metrics.stat_log import StatLog
from mockserve.options.fake_metrics import FakeMetrics

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
            page = self._next[kind] = asyncio.create_task(self._made(kind, make))
        return await asyncio.shield(page)

    async def _made(self, kind: object, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
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


class MetricsPart(Protocol):
    """The counts of one of several processes."""

    @property
    def http(self) -> HttpMetrics: ...

    @property
    def rejections(self) -> Mapping[str, int]: ...

    @property
    def tool_parsing(self) -> ToolParsing | None: ...

    @property
    def lag_s(self) -> Histogram: ...

    @property
    def num_streams_cut(self) -> int: ...


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
        return [
            *(self._family(family, states) for family in (*drafts, *FAMILIES)),
            _made(self._rejections()),
            *(self._family(family, states) for family in HISTOGRAMS),
            *map(_made, self._others()),
        ]

    def _others(self) -> Iterator[Metric]:
        yield from self._adapters()
        yield self._cache_config()
        yield from self.http.collect()
        if self.tool_parsing is not None:
            yield self.tool_parsing.family(self.model_name)
        yield from self.operations.collect()
        yield self._lateness()
        yield self._slow_readers()

    def _family(self, family: Family, states: Mapping[int, EngineState]) -> "Reading":
        labels = ["model_name", "engine", *([family.label] if family.label else [])]
        values = [
            (self._labels(number, each, last), value)
            for number, each in self.engines.items()
            for last, value in _labelled(self._value(family, each, states[number]))
            if self._is_set(family, each, states[number])
        ]
        return partial(_METRICS[family.kind], f"{PREFIX}{family.name}", family.help, labels, values)

    def _is_set(self, family: Family, engine: MeasuredEngine, state: EngineState) -> bool:
        """Whether the page has the samples of an engine. In multi-process mode those of steps come with the first."""
        if not self.is_multiprocess or family.name not in STEP_GAUGES:
            return True
        is_chosen = family.name in self._shown_fakes.value_functions or self.overrides.names(f"vllm:{family.name}")
        return is_chosen or engine.metrics.has_stepped or state.stats.num_running + state.stats.num_waiting > 0

    def _value(self, family: Family, engine: MeasuredEngine, state: EngineState) -> Value:
        """Return the fake value, or else the measured one."""
        return displayed_value(self._shown_fakes, family.name, family.read(state), time.time() - engine.created)

    @property
    def _shown_fakes(self) -> FakeMetrics:
        return self.overrides.fakes or self.fakes

    def _labels(self, number: int, engine: MeasuredEngine, last: str) -> tuple[list[str], float]:
        """Return the label values of one sample, and the start of counting."""
        return [self.model_name, str(number), *([last] if last else [])], engine.created

    def _rejections(self) -> Metric:
        metric = CounterMetricFamily(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            labels=["model_name", "reason"],
        )
        for reason, number in self.rejections.items():
            metric.add_metric([self.model_name, reason], number, created=self.created)
        return metric

    def _adapters(self) -> Iterator[Metric]:
        """Yield the metric of adapter lists, each with the time it was last seen; yield nothing without adapters."""
        lora = self.config.lora
        fakes = self._shown_fakes
        if lora is None and fakes.loras is None:
            return
        metric = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        most = str(lora.max_loras if lora is not None else 1)
        if fakes.loras is not None:
            for fake in fakes.loras:
                metric.add_metric([most, fake.waiting, fake.running], fake.unix_time_s)
        else:
            last_seen: dict[str, float] = {}
            for engine in self.engines.values():
                for names, at in engine.metrics.adapters.last_seen().items():
                    last_seen[names] = max(at, last_seen.get(names, 0.0))
            for names, at in last_seen.items():
                metric.add_metric([most, names, names], at)
        yield metric

    def _cache_config(self) -> Metric:
        names = sorted([*self.cache_config, "engine"])
        metric = GaugeMetricFamily("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=names)
        for number in self.engines:
            values = {**self.cache_config, "engine": str(number)}
            metric.add_metric([values[name] for name in names], 1)
        return metric

    def _lateness(self) -> Metric:
        return _histograms(
            "blis_send_lag_seconds",
            "Real time by which frames leave later than they are due.",
            [],
            [(([], self.created), self.lateness.histogram)],
        )

    def _slow_readers(self) -> Metric:
        metric = CounterMetricFamily(
            "blis_slow_readers_cut", "Streams cut because their clients left too much unread.", labels=[]
        )
        metric.add_metric([], self.slow_readers.num_cut, created=self.created)
        return metric


def _state_of(engine: MeasuredEngine) -> EngineState:
    simulated = engine.driver.engine
    return EngineState(simulated.stats, simulated.counters, engine.metrics)


Sample: TypeAlias = tuple[tuple[list[str], float], float | Histogram]
"""Label values, start of counting, and value of a sample."""


def _labelled(value: Value) -> Iterable[tuple[str, float | Histogram]]:
    if isinstance(value, Mapping):
        return value.items()
    return [("", value.copy() if isinstance(value, Histogram) else value)]


def _made(metric: Metric) -> Reading:
    return lambda: metric


def _counters(name: str, help_text: str, labels: list[str], samples: Iterable[Sample]) -> Metric:
    metric = CounterMetricFamily(name, help_text, labels=labels)
    for (values, created), number in samples:
        assert not isinstance(number, Histogram)
        metric.add_metric(values, number, created=created)
    return metric


def _gauges(name: str, help_text: str, labels: list[str], samples: Iterable[Sample]) -> Metric:
    metric = GaugeMetricFamily(name, help_text, labels=labels)
    for (values, _), number in samples:
        assert not isinstance(number, Histogram)
        metric.add_metric(values, number)
    return metric


def _histograms(name: str, help_text: str, labels: list[str], samples: Iterable[Sample]) -> Metric:
    metric = HistogramMetricFamily(name, help_text, labels=labels)
    for (values, created), histogram in samples:
        assert isinstance(histogram, Histogram)
        metric.add_metric(values, cumulative(histogram), histogram.total)
        metric.add_sample(f"{name}_created", dict(zip(labels, values, strict=True)), created)
    return metric


_METRICS: Mapping[str, Callable[[str, str, list[str], Iterable[Sample]], Metric]] = {
    "counter": _counters,
    "gauge": _gauges,
    "histogram": _histograms,
}


def sum_of_parts(source: MetricsSource, parts: Sequence[MetricsPart]) -> MetricsSource:
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
        if tool_parsing is not None and part.tool_parsing is not None:
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
) -> MetricsSource:
    """Return a source for at least one engine, with metrics of the process unless `is_multiprocess`.

    `log_interval_s` is the time between log lines about throughput; 0 for none.
    """
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
    )
    registry = source._registry
    if not is_multiprocess:
        GCCollector(registry=registry)
        PlatformCollector(registry=registry)
        ProcessCollector(registry=registry)
    registry.register(source)
    return source
