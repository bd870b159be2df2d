"""The figures of a server over its life: their window, their percentiles and their bounds."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from mockserve.metrics.counters import EngineMetrics, HttpMetrics, Lateness, LogHistogram
from mockserve.metrics.page import (
    MOST_COLUMNS,
    MOST_ENGINES,
    MOST_LOOKS,
    History,
    MetricsSource,
    increase,
    percentiles_ms,
)


@dataclass
class FakeStats:
    num_running: int = 0
    num_waiting: int = 0
    kv_usage_fraction: float = 0.0
    num_preemptions: int = 0


@dataclass
class FakeEngine:
    """An engine and its driver."""

    stats: FakeStats = field(default_factory=FakeStats)

    @property
    def engine(self) -> "FakeEngine":
        return self


@dataclass
class FakeMeasured:
    driver: FakeEngine = field(default_factory=FakeEngine)
    metrics: EngineMetrics = field(default_factory=lambda: EngineMetrics(2048))


@dataclass
class FakeSource:
    engines: dict[int, FakeMeasured]
    http: HttpMetrics = field(default_factory=HttpMetrics)
    lateness: Lateness = field(default_factory=Lateness)
    history: History = field(default_factory=History)
    now: float = 1000.0

    def pass_second(self, steps: int = 0, gap_us: int = 10_000, engine: int = 0) -> None:
        """Take steps of one engine in a second that ends with a look."""
        for _ in range(steps):
            self.engines[engine].metrics.step(0, 1, {gap_us: 1})
        self.engines[engine].driver.stats.num_running = int(steps > 0)
        self.now += 1
        self.history.take_snapshot(cast(MetricsSource, self), self.now)

    @property
    def figures(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = orjson.loads(self.history.text(self.http.errors))
        return found


@pytest.fixture
def source() -> FakeSource:
    found = FakeSource({0: FakeMeasured()})
    found.history.take_snapshot(cast(MetricsSource, found), found.now)
    return found


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_percentiles_are_within_one_percent_of_those_of_the_durations(spread: float) -> None:
    rng = random.Random(7)
    durations_us = [rng.lognormvariate(9, spread) for _ in range(5000)]
    counts = LogHistogram()
    for each in durations_us:
        counts.observe(each)
    found, ordered = percentiles_ms(counts.counts), sorted(durations_us)
    assert found is not None
    for fraction, value in zip((0.5, 0.9, 0.99), found, strict=True):
        assert value == pytest.approx(ordered[round(fraction * 5000) - 1] / 1000, rel=0.0101)


def test_durations_of_nothing_and_of_less_than_a_microsecond_are_counted() -> None:
    counts = LogHistogram()
    assert percentiles_ms(counts.counts) is None
    counts.observe(0, 3)
    assert increase({}, counts.counts) == {0: 3}
    assert increase(counts.counts, counts.counts) == {}


def test_seconds_without_load_are_left_out_but_one_before_and_one_after(source: FakeSource) -> None:
    for _ in range(5):
        source.pass_second()
    assert source.figures["at"] == []
    source.pass_second(100)
    for _ in range(50):
        source.pass_second()
    source.pass_second(50)
    found = source.figures
    assert found["at"] == [1005, 1006, 1007, 1056, 1057]
    assert found["series"]["steps_per_s"] == [0, 100, 0, 0, 50]
    assert found["series"]["step_ms"] == [None, 5, None, None, 10]  # an engine that begins to run counts half a second
    assert [len(each["load"]) for each in found["engines"]] == [5]


def test_percentiles_of_a_second_are_those_of_its_own_observations(source: FakeSource) -> None:
    source.pass_second(100, gap_us=10_000)
    source.pass_second(10, gap_us=40_000)
    assert source.figures["series"]["itl_p50_ms"] == [None, pytest.approx(10, rel=0.01), pytest.approx(40, rel=0.01)]
    assert source.figures["now"]["itl_p50_ms"] == [pytest.approx(10, rel=0.01)]
    assert source.figures["engines"][0]["itl_ms"] == pytest.approx([10, 10, 40], rel=0.01)


def test_looks_are_merged_where_there_are_too_many_and_nothing_is_lost(source: FakeSource) -> None:
    number = 3 * MOST_LOOKS
    for _ in range(number):
        source.pass_second(10)
    found = source.figures
    assert MOST_LOOKS / 2 <= len(found["at"]) <= MOST_LOOKS
    assert found["at"][-1] == 1000 + number
    assert set(found["series"]["output_tokens_per_s"][1:]) == {10}  # the first covers the idle second before, too
    assert sum(each.counts["output_tokens"] for each in source.history.snapshots) == 10 * number
    assert sum(sum(each.itl.values()) for each in source.history.snapshots) == 10 * number
    assert len(found["columns_at"]) <= MOST_COLUMNS
    assert [len(each["load"]) for each in found["engines"]] == [len(found["columns_at"])]


def test_engines_come_and_go_and_only_some_have_figures_of_their_own(source: FakeSource) -> None:
    source.pass_second(10)
    source.engines |= {number: FakeMeasured() for number in range(1, MOST_ENGINES + 5)}
    source.pass_second(10, engine=3)
    del source.engines[0]
    source.pass_second(10, engine=3)
    found = source.figures
    assert found["num_engines"] == MOST_ENGINES + 4
    assert [each["engine"] for each in found["engines"]] == list(range(1, MOST_ENGINES + 1))
    assert found["engines"][2]["load"] == [0, 0, 1, 1]
    assert found["series"]["running"] == [0, 1, 2, 1]


def test_errors_are_counted_by_status(source: FakeSource) -> None:
    for status in (200, 429, 429, 503):
        source.http.observe("/v1/completions", "POST", status, 1, 1, 0.1)
    source.pass_second(10)
    assert source.figures["errors_by_status"] == {"429": 2, "503": 1}
    assert source.figures["now"]["errors_per_s"] == [3]
    copy = HttpMetrics()
    copy.add(source.http)
    assert copy.errors == {429: 2, 503: 1}
