"""Figures of work beside generation: durations of control operations, and uses of a tool parser."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from time import perf_counter

from prometheus_client import Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric

BUCKETS_S = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class OperationKind:
    """A family of operations: the beginning of its metrics' names, and the word of their help texts."""

    prefix: str
    word: str


SLEEP = OperationKind("vllm:sleep_mode_operation", "sleep-mode")
WEIGHTS = OperationKind("vllm:rl_weight_update_operation", "weight-transfer")


@dataclass(frozen=True, slots=True)
class _Family:
    duration: Histogram
    in_flight: Gauge


@dataclass(slots=True)
class Operations:
    """Durations and numbers in flight by operation."""

    _families: dict[OperationKind, _Family] = field(default_factory=dict)

    @contextmanager
    def timed(self, kind: OperationKind, operation: str) -> Iterator[None]:
        """Count the operation in flight while the block runs, then its duration, whether it fails or not."""
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
        Histogram(
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
    """Counts by mode, outcome and type of request."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=_nothing_yet)
    created: float = field(default_factory=time.time)

    def used(self, request_type: str, num_with_call: int, num_without: int, is_stream: bool) -> None:
        """The parser was used so often: `num_with_call` times it found something of a call."""
        mode = MODES[0] if is_stream else MODES[1]
        for outcome, number in zip(OUTCOMES, (num_with_call, num_without), strict=True):
            self.counts[mode, outcome, request_type] += number

    def add(self, other: "ToolParsing") -> None:
        """Count what another has counted, too."""
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
