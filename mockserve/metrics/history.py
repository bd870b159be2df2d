"""A server's metrics over time: a snapshot of its counters every second with activity."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp
from typing import TYPE_CHECKING, Any

import orjson

from mockserve.metrics.engine import BUCKETS_PER_E

if TYPE_CHECKING:
    from mockserve.metrics.page import MeasuredEngine, MetricsSource

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
            running=_mean([each.running for each in snapshots]),
            waiting=_mean([each.waiting for each in snapshots]),
            kv_percent=_mean([each.kv_percent for each in snapshots]),
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _in_groups(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of each group of `size` consecutive values."""
    return [_mean(values[start : start + size]) for start in range(0, len(values), size)]


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
            self._keep(self._idle)
            self._idle = None
        self._keep(take_snapshot)

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
            kv_percent=_mean([each.kv_now_percent for each in known_engines]) if known_engines else 0.0,
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

    def _keep(self, take_snapshot: Snapshot) -> None:
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

    def _now(self) -> Snapshot:
        """Merge the recent snapshots, with the gauges of the latest."""
        now, latest = merged(self._recent), self._recent[-1]
        now.running, now.waiting, now.kv_percent = latest.running, latest.waiting, latest.kv_percent
        return now

    def _described(self, errors: Mapping[int, int]) -> Mapping[str, Any]:
        group = max(1, ceil(len(self.snapshots) / MOST_COLUMNS))
        shown = list(self._engines.items())[:MOST_ENGINES]
        return {
            "at": [round(each.at, 2) for each in self.snapshots],
            "series": _series(self.snapshots),
            "now": _series([self._now()]) if self._recent else {},
            "errors_by_status": errors,
            "num_engines": len(self._engines),
            "columns_at": [
                round(self.snapshots[start : start + group][-1].at, 2) for start in range(0, len(self.snapshots), group)
            ],
            "engines": [_engine(number, engine, group) for number, engine in shown],
        }


def _series(snapshots: Sequence[Snapshot]) -> Mapping[str, Sequence[float | None]]:
    """Return each metric of the snapshots. Rates are per second of real time, latencies in simulated milliseconds."""

    def rates(name: str) -> Sequence[float | None]:
        return [_rate(each.counts[name], each.span_s) for each in snapshots]

    found: dict[str, Sequence[float | None]] = {
        "running": [round(each.running, 1) for each in snapshots],
        "waiting": [round(each.waiting, 1) for each in snapshots],
        "kv_percent": [round(each.kv_percent, 2) for each in snapshots],
        "lag_p99_ms": [None if each.lag_p99_ms is None else round(each.lag_p99_ms, 2) for each in snapshots],
        "errors_per_s": [_rate(each.errors, each.span_s) for each in snapshots],
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


def _rate(count: float, span_s: float) -> float | None:
    return round(count / span_s, 3) if span_s > 0 else None


def _engine(number: int, engine: _EngineHistory, group: int) -> Mapping[str, Any]:
    """Return the present metrics of an engine, and its load over time."""
    first, last = engine.recent[0], engine.recent[-1]
    return {
        "engine": number,
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_percent": round(engine.kv_now_percent, 2),
        "requests_per_s": _rate(last.requests - first.requests, last.at - first.at),
        "output_tokens_per_s": _rate(last.output_tokens - first.output_tokens, last.at - first.at),
        "ttft_ms": percentiles_ms(increase(first.ttft, last.ttft)),
        "itl_ms": percentiles_ms(increase(first.itl, last.itl)),
        "load": [round(each, 1) for each in _in_groups(engine.load, group)],
        "kv_load_percent": [round(each, 1) for each in _in_groups(engine.kv_percent, group)],
    }
