from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observe.body import Lengths
from observe.errors import ObserveError
from observe.requests import (
    PlannedRequest,
    constant_arrivals_us,
    mean_rate,
    peak_arrivals,
    plan_from_trace,
    plan_synthetic,
    poisson_arrivals_us,
)
from traces import TraceRow


def at(*times_us: int) -> list[PlannedRequest]:
    return [PlannedRequest(at_us=each, input_tokens=1, output_tokens=1) for each in times_us]


@given(st.floats(0.1, 5000), st.integers(1, 300))
def test_constant_arrivals_are_never_more_than_a_microsecond_off(rate: float, count: int) -> None:
    for place, at_us in enumerate(constant_arrivals_us(rate, count), 1):
        assert abs(at_us - place * 1e6 / rate) <= 1


def test_poisson_arrivals_have_the_requested_rate_and_exponential_gaps() -> None:
    arrivals = poisson_arrivals_us(50, 20_000, Random(1))
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(20_000, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)


def test_lengths_without_deviation_are_exact() -> None:
    assert {Lengths(label="--x", mean=512).draw(Random(1)) for _ in range(100)} == {512}


def test_lengths_stay_within_their_bounds_and_around_their_mean() -> None:
    random = Random(1)
    drawn = [Lengths(label="--x", mean=100, stdev=50, least=20, most=180).draw(random) for _ in range(5000)]
    assert (min(drawn), max(drawn)) == (20, 180)
    assert sum(drawn) / len(drawn) == pytest.approx(100, rel=0.03)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"mean": 5, "least": 9}, "--x must be at least --x-min (9), got 5"),
        ({"mean": 5, "most": 4}, "--x must be at most --x-max (4), got 5"),
        ({"mean": 5, "least": 4, "most": 3}, "--x-max must be at least --x-min (4), got 3"),
    ],
)
def test_a_mean_out_of_bounds_is_refused(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ObserveError) as error:
        Lengths(label="--x", **bounds)
    assert str(error.value) == message


def test_a_shared_prefix_is_beside_the_prompt() -> None:
    (planned,) = plan_synthetic(
        [7], Lengths(label="", mean=30), Lengths(label="", mean=4), prefix_tokens=100, random=Random(1)
    )
    assert (planned.at_us, planned.input_tokens, planned.prefix_tokens, planned.output_tokens) == (7, 30, 100, 4)
    assert planned.prefix_group


def test_a_recording_is_planned_in_order_of_arrival_from_its_first() -> None:
    rows = [
        TraceRow(request_id=id, input_tokens=1, output_tokens=1, arrival_time_us=at_us)
        for id, at_us in enumerate([900, 500, 700])
    ]
    assert [planned.at_us for planned in plan_from_trace(rows)] == [0, 200, 400]


def test_a_recorded_prompt_is_as_long_as_the_server_counted_else_as_planned() -> None:
    rows = [
        TraceRow(request_id=0, arrival_time_us=0, output_tokens=9, server_input_tokens=50, input_tokens=40),
        TraceRow(request_id=1, arrival_time_us=1, output_tokens=0, input_tokens=40, prefix_length=10),
        TraceRow(
            request_id=2, arrival_time_us=2, output_tokens=1, input_tokens=40, prefix_length=10,
            prefix_group="g", server_input_tokens=60, session_id="s", round_index=3,
        ),
    ]  # fmt: skip
    counted, planned, grouped = plan_from_trace(rows)
    assert (counted.input_tokens, counted.output_tokens) == (50, 9)
    assert (planned.input_tokens, planned.prefix_tokens, planned.output_tokens) == (50, 0, 1)
    assert (grouped.input_tokens, grouped.prefix_tokens, grouped.prefix_group) == (50, 10, "g")
    assert (grouped.session_id, grouped.round_index) == ("s", 3)


def test_the_peak_is_the_busiest_stretch_of_time() -> None:
    assert peak_arrivals(at(0, 50, 60, 70, 200), 100) == 4
    assert peak_arrivals(at(0, 100, 200), 100) == 1


def test_the_mean_rate_is_that_of_the_gaps() -> None:
    assert mean_rate(at(0, 100_000, 200_000)) == 10
    assert mean_rate(at(5)) == 0
