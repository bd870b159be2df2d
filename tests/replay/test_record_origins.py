"""The origins of a record, generated requests and rows of a trace, are kept by columns and come back as they were."""

import random

import pytest

from replay.arrivals import Origin
from replay.simulation.record import Origins
from traces import TraceRow
from traces.packed import ROWS_AT_ONCE
from traces.workload.request import WorkloadRequest


def request(draws: random.Random) -> WorkloadRequest:
    return WorkloadRequest(
        draws.randint(0, 2**40),
        draws.randint(1, 9),
        draws.randint(1, 9),
        slo_class=draws.choice(["", "batch"]),
        session_id=f"s{draws.randint(0, 3)}",
        streaming=draws.choice([None, True]),
        keeps_context=draws.choice([True, False]),
        reason_ratio=draws.choice([0.0, 0.5]),
        priority=draws.choice([None, 1]),
    )


@pytest.mark.parametrize("size", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 3 * ROWS_AT_ONCE + 7])
def test_origins_are_those_that_were_added(size: int) -> None:
    draws = random.Random(size)
    given: list[Origin] = [request(draws) for _ in range(size)]
    for place in range(size // 2, size, 300):
        given[place] = TraceRow(request_id=place, input_tokens=3, output_tokens=4, arrival_time_us=place)
    origins, left = Origins(), list(given)
    while left:
        count = draws.randint(1, 400)
        origins.extend(left[:count])
        del left[:count]
    assert len(origins) == size
    assert list(origins) == given
    assert [origins[place] for place in range(size)] == given
    assert origins[2:-3] == given[2:-3]
    assert [tuple(map(type, each)) for each in origins if isinstance(each, tuple)] == [
        tuple(map(type, each)) for each in given if isinstance(each, tuple)
    ]
    with pytest.raises(IndexError):
        origins[size]


def test_equal_requests_are_made_as_often_as_they_were_added() -> None:
    origins, one = Origins(), WorkloadRequest(0, 1, 1)
    origins.extend([one] * (2 * ROWS_AT_ONCE))
    assert list(origins) == [one] * (2 * ROWS_AT_ONCE)
