"""Arrivals and answers in one order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traces.saturation import Timeline, timeline


def of(*requests: tuple[str, int, int]) -> Timeline:
    """A timeline of requests given as id, arrival and latency in microseconds."""
    ids = [name for name, _, _ in requests]
    return timeline(np.array([at for _, at, _ in requests]), np.array([e2e for *_, e2e in requests]), ids)


def test_events_come_in_order_of_time_arrivals_first() -> None:
    events = of(("a", 0, 20), ("b", 10, 30), ("c", 20, 5))
    assert events.at_us.tolist() == [0, 10, 20, 20, 25, 40]
    assert events.num_arrived.tolist() == [1, 2, 3, 3, 3, 3]
    assert events.num_answered.tolist() == [0, 0, 0, 1, 2, 3]


def test_answers_of_one_instant_come_by_id_as_text() -> None:
    events = of(("request_9", 0, 50), ("request_10", 10, 40))
    assert events.latencies_ms.tolist() == [0.04, 0.05]


def test_there_are_no_events_without_requests() -> None:
    assert len(timeline(np.zeros(0, np.int64), np.zeros(0, np.int64), [])) == 0


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**9)), max_size=30))
def test_each_request_arrives_and_is_answered_once(requests: list[tuple[int, int]]) -> None:
    events = of(*((f"r{number}", at, e2e) for number, (at, e2e) in enumerate(requests)))
    assert len(events) == 2 * len(requests)
    assert (np.diff(events.at_us) >= 0).all()
    assert (events.num_arrived >= events.num_answered).all()
    assert sorted(events.latencies_ms) == sorted(e2e / 1000 for _, e2e in requests)
