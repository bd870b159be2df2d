"""Durations of control operations, in families that appear with the first operation, as vLLM's do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from prometheus_client import Gauge, Histogram
from prometheus_client.core import Metric

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
