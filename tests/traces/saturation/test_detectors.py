"""Detectors, worked out for all events at once, give the verdicts of their rules event by event."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.traces.saturation import plain
from traces.saturation import DETECTORS, Level, Timeline, Verdicts, backlog_drift, composite, threshold, timeline
from traces.saturation_options import SaturationSettings

SETTINGS = SaturationSettings(threshold_ms=40, window_us=25_000)


def requests(*answered: tuple[int, int]) -> Timeline:
    """A timeline of requests given as arrival and latency in microseconds."""
    arrived_at, e2e = np.array(answered, np.int64).reshape(-1, 2).T
    return timeline(arrived_at, e2e, [f"request_{number}" for number in range(len(answered))])


_timelines = st.lists(
    st.tuples(st.integers(0, 40).map(lambda tick: tick * 5_000), st.integers(1, 20).map(lambda tick: tick * 5_000)),
    min_size=1,
    max_size=60,
).map(lambda answered: requests(*answered))


def results(verdicts: Verdicts) -> Iterator[plain.Result]:
    for place in range(len(verdicts)):
        signals = {name: float(values[place]) for name, values in verdicts.signals.items()}
        yield (
            Level(verdicts.levels[place]).name,
            float(verdicts.scores[place]),
            float(verdicts.confidences[place]),
            signals if place >= verdicts.num_without_signals else {},
        )


@given(_timelines)
@settings(max_examples=examples(60))
def test_threshold_follows_its_rule(events: Timeline) -> None:
    assert list(results(threshold(events, 0, SETTINGS))) == list(plain.threshold(events, 40))


@given(_timelines)
@settings(max_examples=examples(60))
def test_composite_follows_its_rule(events: Timeline) -> None:
    assert list(results(composite(events, 0, SETTINGS))) == list(plain.composite(events))


@given(_timelines)
@settings(max_examples=examples(60))
def test_backlog_drift_follows_its_rule(events: Timeline) -> None:
    assert list(results(backlog_drift(events, 0, SETTINGS))) == list(plain.backlog_drift(events, 25_000))


@pytest.mark.parametrize("name", DETECTORS)
@given(events=_timelines, first=st.integers(0, 200))
@settings(max_examples=examples(30))
def test_the_last_verdicts_can_be_had_by_themselves(name: str, events: Timeline, first: int) -> None:
    first = min(first, len(events) - 1)
    all_of_them = list(results(DETECTORS[name](events, 0, SETTINGS)))
    assert list(results(DETECTORS[name](events, first, SETTINGS))) == all_of_them[first:]


def test_very_many_answers_are_judged_as_few_are() -> None:
    """Beyond a number of answers sums are taken another way, which may cost the last bit but nothing else."""
    count = 30_001
    rng = np.random.default_rng(7)
    latencies_us = rng.integers(5_000, 90_000, count) + np.arange(count)
    events = requests(*zip(range(0, 1_000 * count, 1_000), latencies_us.tolist(), strict=True))
    verdicts = composite(events, len(events) - 1, SETTINGS)
    earlier, later = np.split(events.latencies_ms, [count // 2])
    trend = math.fsum(later) / len(later) / (math.fsum(earlier) / len(earlier)) - 1
    assert verdicts.signals["latency_trend_raw"] == pytest.approx(trend, rel=1e-12)
    assert Level(verdicts.levels[0]) is Level.OVERLOADED


def test_a_trend_of_latencies_counts_from_20_answers_on() -> None:
    events = requests(*((10_000 * number, 1_000 + 500 * number) for number in range(20)))
    rises = composite(events, 0, SETTINGS).signals["quartile_monotone"]
    assert dict(zip(events.num_answered.tolist(), rises.tolist(), strict=True))[19] == 0
    assert rises[-1] == 1
