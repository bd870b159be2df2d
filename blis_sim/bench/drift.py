"""Drift of a live server from its prediction: readings of its metrics, the predicted figures, and their comparison in a
loop.
"""

import json
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from blis_sim.bench import BenchError
from blis_sim.bench.watch_options import WatchOptions
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.options import BlisError
from blis_sim.options.printing import TABLE, print_note, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.figures import COLORS, Panel
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, flat, streamed
from calibrate.compare import EXIT_CODE
from observe.errors import RunError
from observe.proxy.cache_canary import CacheFigures
from observe.top import read_url
from replay.arrivals import Arrival
from replay.output.ensemble import sampled_latency_models
from replay.simulation.record import NEVER, Floats, Record
from replay.simulation.simulate import simulate
from replay.simulation.uncertainty import latency_sampler
from traces import TraceRow
from traces.redaction import without_secret_parameters
from traces.server_settings import blocks_of_one_engine
from traces.text_file import write_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

    from blis_sim.bench.watched_traffic import WatchedTraffic

_print_note = partial(print_note, "blis calibrate --watch")

# Readings of vLLM's metrics, the increase between two readings, and the sources of readings.

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
KV_USAGE = "vllm:kv_cache_usage_perc"
CACHE = "vllm:cache_config_info"

HISTOGRAMS = (PROMPTS, OUTPUTS, TTFT, E2E, ITL)
VALUES = (SUCCESS, RUNNING, WAITING, QUERIES, HITS, KV_USAGE)
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


def source_of(options: WatchOptions, keep_s: float) -> "PageSource | PrometheusSource":
    """Return the source that the URL names, with readings of the last `keep_s`."""
    url = (options.url or "").rstrip("/")
    if options.reads_prometheus:
        base = url[: url.index("/api/v1") + len("/api/v1")]
        return PrometheusSource(f"{base}/query", options.selector, options.api_key, options.watch_interval, keep_s)
    page = url if urlsplit(url).path.endswith("/metrics") else f"{url}/metrics"
    return PageSource(page, options.api_key, options.scrape_interval, keep_s)


class PageSource:
    """The metrics page of a server. `poll` reads it now; where that fails, the readings stay as they were.

    The readings are those since the server last started, ascending.
    """

    def __init__(self, url: str, api_key: str | None, poll_every_s: float, keep_s: float) -> None:
        self.poll_every_s = poll_every_s
        self.readings: Sequence[Reading] = []
        self._url, self._api_key, self._keep_s = url, api_key, keep_s

    def poll(self) -> None:
        text = read_url(self._url, self._api_key).decode("utf-8", "replace")
        try:
            reading = reading_of(time.time(), _samples(text))
        except (BenchError, ValueError, KeyError) as error:
            raise BenchError(f"cannot use {self._url.partition('?')[0]}: {error}") from error
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


# Predicted figures of a stretch of time, with intervals: requests that readings show, simulated several times.

_SHARED = "shared prompts"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the requests that ended: their histogram, and the standard deviation that sums over time show."""

    observed: Histogram
    spread: float

    def drawn(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return so many lengths, whose mean is the observed one."""
        buckets = bucket_counts(self.observed)
        weights = np.array([each[2] for each in buckets])
        chosen = generator.choice(len(buckets), count, p=weights / weights.sum())
        lows, highs = (np.array([each[side] for each in buckets])[chosen] for side in (0, 1))
        lengths = lows + (highs - lows) * generator.random(count)
        mean = self.observed.total / self.observed.count
        # A bucket is wide: lengths that are all equal show in that sums over short times have no spread.
        wide = float(lengths.std())
        narrowed = min(1.0, self.spread / wide) if wide else 0.0
        drawn: npt.NDArray[np.int64] = np.rint(mean + (lengths - lengths.mean()) * narrowed).astype(np.int64)
        return np.maximum(1, drawn)


def lengths_of(readings: Sequence[Reading], name: str) -> Lengths:
    """Return the lengths of the requests that ended between the first and the last reading."""
    whole = readings[-1].histograms[name].increase_since(readings[0].histograms[name])
    pieces = [after.histograms[name].increase_since(before.histograms[name]) for before, after in _pairs(readings)]
    some = [each for each in pieces if each.count > 0]
    mean = whole.total / whole.count
    squares = sum(each.count * (each.total / each.count - mean) ** 2 for each in some)
    return Lengths(whole, (squares / (len(some) - 1)) ** 0.5 if len(some) > 1 else float("inf"))


def _pairs(readings: Sequence[Reading]) -> list[tuple[Reading, Reading]]:
    return list(pairwise(readings))


def num_arrived(readings: Sequence[Reading]) -> list[int]:
    """Return how many requests came between readings: ended requests plus the increase of requests in flight."""
    found, total, given = [], 0.0, 0
    for before, after in _pairs(readings):
        total += max(0.0, after.values[SUCCESS] - before.values[SUCCESS] + after.in_flight - before.in_flight)
        found.append(round(total) - given)
        given = round(total)
    return found


def hit_rate(readings: Sequence[Reading]) -> float:
    """Return the share of prompt tokens that the prefix cache had."""
    first, last = readings[0].values, readings[-1].values
    queries = last[QUERIES] - first[QUERIES]
    return (last[HITS] - first[HITS]) / queries if queries > 0 else 0.0


def arrivals_of(readings: Sequence[Reading], config: EngineConfig, generator: np.random.Generator) -> list[Arrival]:
    """Return requests that came as the readings show, instants in microseconds since the first.

    Within the time between two readings any instant is as likely as any other. Requests that were in flight at the
    first reading come at once, with a part of their outputs.
    """
    in_flight = round(readings[0].in_flight)
    instants = [np.zeros(in_flight)]
    for (before, after), count in zip(_pairs(readings), num_arrived(readings), strict=True):
        instants.append(generator.uniform(before.at_s, after.at_s, count) - readings[0].at_s)
    at_s = np.sort(np.concatenate(instants), kind="stable")
    prompts = lengths_of(readings, PROMPTS).drawn(len(at_s), generator)
    outputs = lengths_of(readings, OUTPUTS).drawn(len(at_s), generator)
    outputs[:in_flight] = np.maximum(1, outputs[:in_flight] * generator.random(in_flight))
    cached = hit_rate(readings)
    limit = config.limit_tokens
    return [
        _arrival(number, int(at * 1e6), min(int(prompt), limit - 1), int(output), cached, config)
        for number, (at, prompt, output) in enumerate(zip(at_s, prompts, outputs, strict=True))
    ]


def _arrival(number: int, at_us: int, prompt: int, output: int, cached: float, config: EngineConfig) -> Arrival:
    output = max(1, min(output, config.limit_tokens - prompt))
    name = f"request_{number}"
    blocks = PrefixGroupBlocks(name, _SHARED, round(cached * prompt / config.block_size_tokens))
    request = Request(name, prompt, output, blocks, max_output_tokens=output)
    row = TraceRow(request_id=number, input_tokens=prompt, output_tokens=output, arrival_time_us=at_us)
    return Arrival(at_us, request, row)


INTERVAL_DEVIATIONS = 3.0
"""Standard deviations of the draws from their mean to either end of an interval, which 3 of 1,000 figures leave by
chance."""
_FEW_DRAWS = 3.0
"""By how much a spread is widened, over its degrees of freedom, for few draws determine it poorly: as in Student's
distribution at three deviations."""
OWN_SPREAD = 0.01
"""How much servers with the model, GPU and software differ from the one that was learned from."""
FIGURES = {TTFT: "TTFT", E2E: "E2E", ITL: "ITL"}


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted mean in seconds, and the least and largest that the server may show."""

    mean_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class ReadingWindow:
    """Readings to simulate, and the index of the first reading whose requests count; earlier ones are a warm-up."""

    readings: Sequence[Reading]
    start: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Beginning and end of what counts, in seconds since the first reading."""
        first = self.readings[0].at_s
        return self.readings[self.start].at_s - first, self.readings[-1].at_s - first


def window_of(readings: Sequence[Reading], window_s: float) -> ReadingWindow | None:
    """Return the last `window_s` of readings, with those before to warm up; where these are short, a tenth of all
    readings is for that. None with fewer than three readings."""
    if len(readings) < 3:
        return None
    last, first = readings[-1].at_s, readings[0].at_s
    start = place_at(readings, max(last - window_s, first + 0.1 * (last - first)))
    return ReadingWindow(readings, start)


def predicted(
    window: ReadingWindow, deployment: Deployment, coefficients: str | None, num_draws: int, tolerance: float
) -> Mapping[str, Interval]:
    """Return the interval of the mean of each figure that all draws have, by the name of its histogram.

    vLLM measures from when it begins to read the prompt, a client from when it sends: the intervals hold both.
    """
    runs = []
    for number, latency in enumerate(_latencies(deployment, coefficients, num_draws)):
        generator = np.random.default_rng([0, number])
        arrivals = arrivals_of(window.readings, deployment.config, generator)
        run = simulate(Engine(deployment.config, latency, reports_steps=False), arrivals)
        runs.append(_draw_result(run.requests, *window.seconds))
    observed = increase_between(window.readings[window.start], window.readings[-1])
    mean_tokens = np.array([observed[name].mean or 0.0 for name in (PROMPTS, OUTPUTS)])
    before_s = deployment.latency.queueing_time(round(mean_tokens[0])) / 1e6
    found = {}
    for name in FIGURES:
        if all(name in run.means_s for run in runs):
            values = np.array([run.means_s[name] for run in runs])
            at = _adjusted(values, np.array([run.mean_tokens for run in runs]), mean_tokens)
            found[name] = _interval(*at, tolerance, 0.0 if name == ITL else before_s)
    return found


def _adjusted(values: Floats, tokens: Floats, observed_tokens: Floats) -> tuple[float, float]:
    """Return the mean of a figure, and its standard deviation, for requests as long as those that were observed.

    Some draws have longer requests in the window than the server had. What a longer mean prompt and output make of the
    figure shows in the draws themselves.
    """
    away = tokens - observed_tokens
    away = away[:, away.std(axis=0) > 0]
    terms = np.column_stack([np.ones(len(values)), away / away.std(axis=0)]) if away.size else np.ones((len(values), 1))
    solution = np.linalg.lstsq(terms, values, rcond=None)[0]
    left = values - terms @ solution
    freedom = max(1, len(values) - terms.shape[1])
    return float(solution[0]), float(np.sqrt((left**2).sum() / freedom)) * (1 + _FEW_DRAWS / freedom)


def _interval(mean: float, spread: float, tolerance: float, before_s: float) -> Interval:
    wide = INTERVAL_DEVIATIONS * spread + tolerance * mean
    return Interval(mean, max(0.0, mean - wide - before_s), mean + wide)


def _is_elsewhere(deployment: Deployment) -> bool:
    """Return whether coefficients were learned for another deployment, so that their spreads do not apply."""
    return any("learned for" in note for note in deployment.notes)


def _latencies(deployment: Deployment, coefficients: str | None, num_draws: int) -> Iterator[LatencyModel]:
    """Yield latency models with coefficients drawn within their spread."""
    try:
        draw = None if _is_elsewhere(deployment) else latency_sampler(deployment.latency, coefficients)
    except EngineError:
        draw = None
    if draw is None:  # step times whose coefficients have no spread here: how far they are off is known as a whole
        sure = deployment.sureness
        spread = sure.step_error if _is_elsewhere(deployment) or sure.latency_model != "fitted" else OWN_SPREAD
        for number in range(num_draws):
            factor = 1.0 + spread * float(np.random.default_rng([1, number]).standard_normal())
            yield PhaseShifted(SlowedLatency(deployment.latency, max(0.2, factor)), number + 1)
        return
    yield from sampled_latency_models(draw, num_draws, 0)


@dataclass(frozen=True, slots=True)
class _DrawResult:
    """Counts of a server in one draw: the mean of each figure, and of prompts and outputs of requests that ended."""

    means_s: Mapping[str, float]
    mean_tokens: tuple[float, float]


def _draw_result(record: Record, start_s: float, end_s: float) -> _DrawResult:
    """Return the counts of a server between two instants: TTFT at first tokens, other figures at last tokens."""
    start_us, end_us = start_s * 1e6, end_s * 1e6
    first_at, last_at = record.arrived_at + record.ttft_us, record.arrived_at + record.e2e_us
    has_first = (record.ttft_us != NEVER) & (first_at >= start_us) & (first_at < end_us)
    has_last = record.is_completed & (record.e2e_us != NEVER) & (last_at >= start_us) & (last_at < end_us)
    found, tokens = {}, (0.0, 0.0)
    if has_first.any():
        found[TTFT] = float(record.ttft_us[has_first].mean()) / 1e6
    if has_last.any():
        found[E2E] = float(record.e2e_us[has_last].mean()) / 1e6
        tokens = float(record.input_tokens[has_last].mean()), float(record.output_tokens[has_last].mean())
        gaps = float(np.maximum(record.output_tokens[has_last] - 1, 0).sum())
        if gaps:
            found[ITL] = float((record.e2e_us - record.ttft_us)[has_last].sum()) / gaps / 1e6
    return _DrawResult(found, tokens)


# Drift of a server from its prediction: one comparison, and all comparisons as a page and as Prometheus metrics.

LEAST_REQUESTS = 20
"""Means of fewer ended requests are not compared."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One mean as the server shows it, beside its prediction. In seconds."""

    name: str
    measured_s: float
    interval: Interval

    @property
    def has_drifted(self) -> bool:
        """Whether the measured mean is outside of the interval."""
        return not self.interval.low_s <= self.measured_s <= self.interval.high_s

    @property
    def in_words(self) -> str:
        """The figure and its interval, in milliseconds."""
        low, high = self.interval.low_s * 1e3, self.interval.high_s * 1e3
        return f"{self.name} {self.measured_s * 1e3:,.2f} ({low:,.2f} to {high:,.2f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last minutes of a server against their prediction. `reason` is the reason for missing figures."""

    at_s: float
    window_s: float = 0.0
    num_requests: int = 0
    mean_prompt_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    figures: Sequence[Figure] = ()
    reason: str = ""
    is_up: bool = True
    """Whether the server, or the Prometheus that scrapes it, was read."""
    cache: CacheFigures | None = None
    """Tokens that requests had to find in the prefix cache; None without --traffic."""

    @property
    def drifted(self) -> Sequence[Figure]:
        """The figures outside of their intervals."""
        return [each for each in self.figures if each.has_drifted]

    @property
    def as_json(self) -> dict[str, Any]:
        """The comparison ready for JSON; figures in milliseconds, None where a figure is not known."""
        names = ("measured_ms", "predicted_ms", "low_ms", "high_ms", "has_drifted")
        known: dict[str, tuple[float | None, ...]] = dict.fromkeys(FIGURES.values(), (None,) * len(names))
        for each in self.figures:
            times_s = (each.measured_s, each.interval.mean_s, each.interval.low_s, each.interval.high_s)
            known[each.name] = (*(time_s * 1e3 for time_s in times_s), each.has_drifted)
        figures = {name.lower(): dict(zip(names, values, strict=True)) for name, values in known.items()}
        counts = {name: getattr(self, name) for name in ("at_s", "window_s", "num_requests", "reason", "is_up")}
        return {**counts, "figures": figures, **({} if self.cache is None else {"cache": asdict(self.cache)})}

    @property
    def lines(self) -> Iterator[str]:
        """The comparison in words: one line, one more for each figure that has drifted, and those of the cache."""
        yield from self._lines_of_figures()
        if self.cache is not None:
            yield (
                f"prefix cache: {self.cache.requests:,} requests had to find {self.cache.must_hit_tokens:,} prompt "
                f"tokens, {self.cache.reported_hit_tokens:,} are reported"
            )
            if self.cache.first_miss:
                yield f"CACHE ALARM: {self.cache.first_miss}"

    def _lines_of_figures(self) -> Iterator[str]:
        if not self.figures:
            yield self.reason
            return
        figures = ", ".join(each.in_words for each in self.figures)
        yield f"{self.num_requests:,} requests in {self.window_s:,.0f} s, means in ms (predicted): {figures}"
        for each in self.drifted:
            error = each.measured_s / each.interval.mean_s - 1
            yield f"DRIFT: {each.name} is {error:+.1%} off its prediction of {each.interval.mean_s * 1e3:,.2f} ms"


def compare_with_prediction(
    readings: Sequence[Reading],
    deployment: Deployment,
    coefficients: str | None,
    *,
    window_s: float,
    num_draws: int,
    tolerance: float,
) -> Comparison:
    """Compare the last `window_s` of readings with their prediction."""
    window = window_of(readings, window_s)
    at_s = readings[-1].at_s if readings else 0.0
    if window is None:
        return Comparison(at_s, reason="too few readings to compare")
    begin = window.readings[window.start]
    observed = increase_between(begin, readings[-1])
    num_requests = round(observed[E2E].count)
    if num_requests < LEAST_REQUESTS or observed[TTFT].count < 1 or observed[PROMPTS].count < 1:
        return Comparison(at_s, reason=f"too few requests to compare: {num_requests} have ended")
    intervals = predicted(window, deployment, coefficients, num_draws, tolerance)
    return Comparison(
        at_s,
        at_s - begin.at_s,
        num_requests,
        observed[PROMPTS].mean or 0.0,
        observed[OUTPUTS].mean or 0.0,
        list(_figures(window, intervals)),
    )


def _figures(window: ReadingWindow, intervals: Mapping[str, Interval]) -> Iterator[Figure]:
    observed = increase_between(window.readings[window.start], window.readings[-1])
    for name, interval in intervals.items():
        measured = observed[name].mean
        if measured is not None:
            yield Figure(FIGURES[name], measured, interval)


_ROWS = 60
_HELP = (
    ("blis_watch_up", "1 where the server was read, else 0."),
    ("blis_watch_timestamp_seconds", "When the comparison was made, in seconds since 1970."),
    ("blis_watch_requests", "Requests that ended in the window that was compared."),
    ("blis_watch_drift", "1 where the mean is outside of the interval of its prediction, else 0."),
    ("blis_watch_measured_seconds", "Mean that the server shows."),
    ("blis_watch_predicted_seconds", "Predicted mean, and the ends of its interval."),
    ("blis_watch_cache_requests", "Requests that were checked against the prefix cache."),
    ("blis_watch_cache_expected_hit_tokens", "Prompt tokens that they had to find there."),
    ("blis_watch_cache_reported_hit_tokens", "Prompt tokens that the server reports as found, of all requests."),
    ("blis_watch_cache_missed", "Requests, or stretches of time, in which less was found than had to be."),
)


def metrics_text(found: Comparison) -> str:
    """Return the comparison in Prometheus' text format."""
    lines: dict[str, list[str]] = {
        "blis_watch_up": [str(int(found.is_up))],
        "blis_watch_timestamp_seconds": [f"{found.at_s:.3f}"],
        "blis_watch_requests": [str(found.num_requests)],
    }
    for each in found.figures:
        label = f'figure="{each.name.lower()}"'
        lines.setdefault("blis_watch_drift", []).append(f"{{{label}}} {int(each.has_drifted)}")
        lines.setdefault("blis_watch_measured_seconds", []).append(f"{{{label}}} {each.measured_s:.9g}")
        ends = {"mean": each.interval.mean_s, "low": each.interval.low_s, "high": each.interval.high_s}
        lines.setdefault("blis_watch_predicted_seconds", []).extend(
            f'{{{label},value="{name}"}} {value:.9g}' for name, value in ends.items()
        )
    if found.cache is not None:
        lines["blis_watch_cache_requests"] = [str(found.cache.requests)]
        lines["blis_watch_cache_expected_hit_tokens"] = [str(found.cache.must_hit_tokens)]
        lines["blis_watch_cache_reported_hit_tokens"] = [str(found.cache.reported_hit_tokens)]
        lines["blis_watch_cache_missed"] = [str(found.cache.missed)]
    return "".join(_family(name, words, lines[name]) for name, words in _HELP if name in lines)


def _family(name: str, words: str, samples: Sequence[str]) -> str:
    text = f"# HELP {name} {words}\n# TYPE {name} gauge\n"
    return text + "".join(f"{name}{sample if sample.startswith('{') else f' {sample}'}\n" for sample in samples)


def watch_report(url: str, history: Sequence[Comparison], origin: Callable[[], Provenance], refresh_s: float) -> Report:
    """Return all comparisons as a page, which a browser loads again every `refresh_s` seconds."""
    with_figures = [each for each in history if each.figures]
    table = _table(history[-_ROWS:][::-1])
    return Report(
        title=f"Calibration of {url} with",
        origin=origin,
        data=lambda: {"comparisons": [each.as_json for each in history]},
        remarks=lambda: _remarks(history[-1]),
        sections=lambda: [Section("Comparisons, the latest first; means in ms", table)],
        panels=lambda: [_panel(name, with_figures) for name in FIGURES.values()] if with_figures else [],
        refresh_s=refresh_s,
    )


def _remarks(found: Comparison) -> Iterator[str]:
    yield from found.lines
    if found.figures and not found.drifted:
        yield "all figures within the intervals of their predictions"


def _table(history: Sequence[Comparison]) -> TextTable:
    titles = ["UTC", "requests", "tokens in", "tokens out"]
    for name in FIGURES.values():
        titles += [name, "predicted", "interval"]
    rows = [
        [*_about_comparison(each), *(cell for name in FIGURES.values() for cell in _cells(each, name))]
        for each in history
    ]
    return TextTable(titles, rows)


def _about_comparison(found: Comparison) -> list[str]:
    at = datetime.fromtimestamp(found.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S") if found.at_s else "-"
    if not found.figures:
        return [at, "-", "-", "-"]
    return [at, f"{found.num_requests:,}", f"{found.mean_prompt_tokens:,.0f}", f"{found.mean_output_tokens:,.0f}"]


def _cells(found: Comparison, name: str) -> list[str]:
    each = _named(found, name)
    if each is None:
        return ["-", "-", "-"]
    low, mean, high = (value * 1e3 for value in (each.interval.low_s, each.interval.mean_s, each.interval.high_s))
    mark = " DRIFT" if each.has_drifted else ""
    return [f"{each.measured_s * 1e3:,.2f}{mark}", f"{mean:,.2f}", f"{low:,.2f} to {high:,.2f}"]


def _named(found: Comparison, name: str) -> Figure | None:
    return next((each for each in found.figures if each.name == name), None)


def _panel(name: str, history: Sequence[Comparison]) -> Panel:
    """Return the measured means over the band of predicted ones."""

    def draw(axes: "Axes") -> None:
        known = [(found.at_s, each) for found in history if (each := _named(found, name)) is not None]
        minutes = [(at_s - history[-1].at_s) / 60 for at_s, _ in known]
        low, high = ([getattr(each.interval, end) * 1e3 for _, each in known] for end in ("low_s", "high_s"))
        axes.fill_between(minutes, low, high, color=COLORS[0], alpha=0.25, linewidth=0, label="predicted")
        axes.plot(minutes, [each.measured_s * 1e3 for _, each in known], "o-", color=COLORS[1], markersize=3,
                  label="measured")  # fmt: skip
        axes.margins(y=0.2)

    return Panel(title=f"Mean {name}", x_label="minutes before the last comparison", y_label="ms", draw=draw)


# The loop of `blis calibrate --watch`: read, compare, write, wait.

_MOST_COMPARISONS = 24 * 60
"""Comparisons that the page shows: a day of minutes."""


@dataclass(slots=True)
class Watch:
    """A watched server: its readings, its deployment, and the comparisons so far."""

    settings: WatchOptions
    source: PageSource | PrometheusSource
    deployment: Deployment
    history: list[Comparison] = field(default_factory=list)
    num_comparisons: int = 0
    has_drifted: bool = False
    traffic: "WatchedTraffic | None" = None

    def compare(self, failure: str) -> None:
        """Compare the last minutes, print and write the comparison; `failure` is the error of the last reading."""
        found = Comparison(time.time(), reason=failure, is_up=False) if failure else self._comparison()
        if self.traffic is not None:
            found = replace(found, cache=self.traffic.figures)
        self.num_comparisons += 1
        has_missed = found.cache is not None and found.cache.missed > 0
        self.has_drifted = self.has_drifted or bool(found.drifted) or has_missed
        self.history = [*self.history[1 - _MOST_COMPARISONS :], found]
        form = printed_format(self.settings)
        if form == TABLE:
            at = time.strftime("%H:%M:%S", time.localtime(found.at_s))
            sys.stdout.writelines(f"{at} {line}\n" for line in found.lines)
        else:
            sys.stdout.write(streamed(form, found.as_json, [flat(found.as_json)], self.num_comparisons == 1))
        sys.stdout.flush()
        if self.settings.drift_metrics is not None:
            write_text(Path(self.settings.drift_metrics), metrics_text(found))
        report = watch_report(
            without_secret_parameters(self.settings.url), self.history, self._origin, self.settings.watch_interval
        )
        report.write(self.settings.html, None)

    def _comparison(self) -> Comparison:
        return compare_with_prediction(
            self.source.readings,
            self.deployment,
            self.settings.deployment.coefficients,
            window_s=self.settings.watch_window,
            num_draws=self.settings.draws,
            tolerance=self.settings.tolerance,
        )

    def _origin(self) -> Provenance:
        command, deployment = command_line("blis calibrate --watch", self.settings), self.deployment
        sure = deployment.sureness
        return Provenance(
            command=command,
            model=deployment.model.name,
            gpu=deployment.gpu.name,
            gpus_per_instance=deployment.num_gpus,
            engine=deployment.config.engine,
            latency_model=sure.latency_model,
            step_error=sure.step_error,
            sureness=sure.as_json,
        )


def watch(settings: WatchOptions) -> int:
    """Watch until enough comparisons are made, a figure has drifted, or the user interrupts.

    Returns the exit code: 3 when a figure has left its interval. Raises RunError or BlisError when the first reading
    fails.
    """
    source = source_of(settings, 2 * settings.watch_window)
    source.poll()
    watched = Watch(settings, source, _deployment(settings, source.readings[-1], _print_note))
    with _traffic(settings, source.readings[-1]) as watched.traffic, suppress(KeyboardInterrupt):
        _wait_for_next(watched, settings)
    return EXIT_CODE if watched.has_drifted else 0


def _traffic(settings: WatchOptions, reading: Reading) -> "AbstractContextManager[WatchedTraffic | None]":
    if settings.traffic is None:
        return nullcontext()
    from blis_sim.bench.watched_traffic import WatchedTraffic, cache_bound

    bound = cache_bound(reading.cache, reading.num_engines)
    return WatchedTraffic(Path(settings.traffic), settings.url, settings.api_key, bound)


def _wait_for_next(watched: Watch, settings: WatchOptions) -> None:
    due = time.monotonic() + settings.watch_interval
    while True:
        wait_s = min(watched.source.poll_every_s, due - time.monotonic())
        time.sleep(max(0.0, wait_s))
        failure = ""
        try:
            watched.source.poll()
        except (BlisError, RunError) as error:
            failure = str(error)
        if watched.traffic is not None:
            watched.traffic.take(watched.source.readings)
        if time.monotonic() < due:
            continue
        watched.compare(failure)
        due = max(due + settings.watch_interval, time.monotonic())
        is_enough = watched.num_comparisons == settings.comparisons
        if is_enough or (watched.has_drifted and not settings.keep_watching):
            return


def _deployment(settings: WatchOptions, reading: Reading, on_note: Callable[[str], None]) -> Deployment:
    """Return the deployment of the flags, with model and KV blocks of the metrics page where these are not given."""
    options = settings.deployment
    given: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(DeploymentOptions)}
    if not options.model:
        given["model"] = reading.model_name
        on_note(f"the metrics page names the model {reading.model_name}")
    blocks = blocks_of_one_engine(reading.cache, reading.num_engines)
    if options.total_kv_blocks is None and blocks is not None and blocks > 1:
        given["total_kv_blocks"] = blocks
        on_note(f"the metrics page states {blocks:,} KV blocks")
    deployment = resolve(DeploymentOptions(**given))
    for note in deployment.notes:
        on_note(note)
    return deployment
