"""Loads whose rate changes over time: stages of the command line, and windows of a spec."""

import dataclasses
from itertools import pairwise

import pytest

from blis_sim.options import OptionError
from tests.traces.workload.specs import client, generated, lifecycle, spec, window
from traces.text_file import TraceError
from traces.workload.generate import generate, rate_of, with_rate
from traces.workload.presets import SyntheticOptions

SECOND = 1_000_000


def arrivals_us(*stages: str, arrival: str = "constant") -> list[int]:
    made = SyntheticOptions(stages=stages, arrival=arrival)
    return [each.arrival_us for each in generate(made.synthetic_spec(num_requests=0, seed=1)).requests]


def test_a_ramp_sends_as_many_requests_in_each_part_as_its_rate_says() -> None:
    # From 1/s to 21/s in 60 s: t + t^2/6 requests by t.
    at = arrivals_us("1-21:60s")
    assert len(at) == 659
    for seconds in (6, 15, 30, 45):
        assert sum(each <= seconds * SECOND for each in at) == pytest.approx(seconds + seconds**2 / 6, abs=1)


def test_a_ramp_may_fall() -> None:
    at = arrivals_us("21-1:60s")
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps == sorted(gaps)
    assert gaps[0] < SECOND / 20 < SECOND / 3 < gaps[-1]


def test_stages_follow_each_other() -> None:
    at = arrivals_us("10:4s", "40:1s", "10-20:2s", arrival="poisson")
    counts = [sum(since <= each / SECOND < until for each in at) for since, until in ((0, 4), (4, 5), (5, 7))]
    assert counts == [39, 39, 29]  # the last gap of a stage ends with it


def test_a_window_of_a_spec_may_rise_and_keeps_its_shape_at_another_rate() -> None:
    rising = client("a", lifecycle=lifecycle(window(0, 10 * SECOND, trace_rate=10.0, end_rate=30.0)))
    made = dataclasses.replace(spec(rising, aggregate_rate=None), num_requests=0)
    assert rate_of(made) == 20
    once, twice = generate(made).requests, generate(with_rate(made, 40.0)).requests
    assert [len(once), len(twice)] == [199, 399]
    early = [sum(each.arrival_us < 5 * SECOND for each in requests) for requests in (once, twice)]
    assert early[0] == pytest.approx(75, abs=12)
    assert early[1] == pytest.approx(150, abs=20)


def test_an_end_rate_needs_a_rate_to_begin_with() -> None:
    with pytest.raises(TraceError, match=r"windows\[0\]\.trace_rate: expected a rate beside end_rate"):
        generated(client("a", lifecycle=lifecycle(window(0, SECOND, end_rate=3.0))))


@pytest.mark.parametrize("text", ["20", "20:", "20:5", "-20:5s", "1-2-3:5s", "0-20:5s", "1e9:5s", "20:0s", "a:5s"])
def test_what_is_no_stage_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--stages must be like 1-20:60s,20:5m with rates from"):
        SyntheticOptions(stages=(text,)).check_load()


def test_stages_take_the_place_of_a_rate() -> None:
    with pytest.raises(OptionError, match=r"^--rate and --stages exclude each other"):
        SyntheticOptions(stages=("1:5s",), rate=1.0).check_load()
