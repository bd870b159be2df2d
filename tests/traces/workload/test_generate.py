"""From specs to requests: clients, send times, and repeatable chance."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.workload.specs import CONSTANT_10, client, cohort, generated, lifecycle, spec, users, window
from traces import TraceError
from traces.workload.generate import generate
from traces.workload.presets import Lengths, Preset, rate_spec
from traces.workload.request import Workload, WorkloadRequest
from traces.workload.spec import Arrival

GAUSSIAN = {"type": "gaussian", "params": {"mean": 100, "std_dev": 30, "min": 1, "max": 500}}
SECOND = 1_000_000


def of(requests: Sequence[WorkloadRequest], client_id: str) -> list[WorkloadRequest]:
    return [each for each in requests if each.client_id == client_id]


def test_requests_come_in_order_of_arrival() -> None:
    requests = generated(client("a"), client("b"), client("c", arrival={"process": "gamma", "cv": 3})).requests
    arrivals = [each.arrival_us for each in requests]
    assert arrivals == sorted(arrivals)
    assert len(requests) == 100


def test_the_earlier_client_of_one_instant_comes_first() -> None:
    constant = {"process": "constant"}
    requests = generated(client("b", arrival=constant), client("a", arrival=constant)).requests
    assert [each.client_id for each in requests[:4]] == ["b", "a", "b", "a"]


def test_equal_seeds_give_equal_requests() -> None:
    one = generated(client(input_distribution=GAUSSIAN), seed=5)
    assert one == generated(client(input_distribution=GAUSSIAN), seed=5)
    assert one.requests != generated(client(input_distribution=GAUSSIAN), seed=6).requests


def test_negative_seeds_are_seeds() -> None:
    assert generated(client(), seed=-5).requests != generated(client(), seed=5).requests


def test_another_client_changes_nothing_of_those_that_are_there() -> None:
    a = client("a", input_distribution=GAUSSIAN, rate_fraction=2)
    b = client("b", input_distribution=GAUSSIAN, rate_fraction=1)
    new = client("new", input_distribution=GAUSSIAN, rate_fraction=1)
    before = generated(a, b, aggregate_rate=30, num_requests=0, horizon=20 * SECOND).requests
    after = generated(new, a, b, aggregate_rate=40, num_requests=0, horizon=20 * SECOND).requests
    assert len(of(after, "new")) > 100
    assert of(after, "a") == of(before, "a")
    assert of(after, "b") == of(before, "b")


@given(st.integers(1, 300), st.integers(1, 200))
def test_more_requests_begin_with_the_same_ones(few: int, more: int) -> None:
    clients = (client("a", input_distribution=GAUSSIAN), client("b", arrival={"process": "weibull", "cv": 3}))
    short = generated(*clients, num_requests=few).requests
    assert short == generated(*clients, num_requests=few + more).requests[:few]


def test_clients_of_the_same_name_draw_apart() -> None:
    requests = generated(client("same"), client("same"), num_requests=50).requests
    assert len({each.arrival_us for each in requests}) == 50


def test_rates_are_divided_in_proportion() -> None:
    clients = (client("a", rate_fraction=3), client("b", rate_fraction=1))
    requests = generated(*clients, num_requests=0, horizon=100 * SECOND).requests
    assert len(of(requests, "a")) == pytest.approx(750, abs=4 * 750**0.5)
    assert len(of(requests, "b")) == pytest.approx(250, abs=4 * 250**0.5)


def test_no_request_arrives_after_the_horizon() -> None:
    constant = client(arrival={"process": "constant"})
    requests = generated(constant, aggregate_rate=50, num_requests=0, horizon=100_000).requests
    assert [each.arrival_us for each in requests] == [20_000, 40_000, 60_000, 80_000, 100_000]


def test_without_an_end_nothing_is_generated() -> None:
    with pytest.raises(TraceError, match="the workload never ends: expected num_requests or horizon"):
        generated(client(), num_requests=0)
    with pytest.raises(TraceError, match="never ends"):
        generated(users(), num_requests=0)


def test_windows_that_end_are_an_end() -> None:
    requests = generated(client(lifecycle=lifecycle(window(0, 5 * SECOND))), num_requests=0).requests
    assert len(requests) == pytest.approx(50, abs=30)


def test_fewer_requests_than_requested_are_all_there_are() -> None:
    requests = generated(client(lifecycle=lifecycle(window(0, SECOND))), num_requests=1_000).requests
    assert len(requests) == pytest.approx(10, abs=10)


def test_a_client_active_late_and_alone_has_all_of_the_rate() -> None:
    early = client("early", lifecycle=lifecycle(window(0, 50 * SECOND)))
    late = client("late", lifecycle=lifecycle(window(50 * SECOND, 100 * SECOND)))
    requests = generated(early, late, num_requests=0).requests
    for name in ("early", "late"):
        assert len(of(requests, name)) == pytest.approx(500, abs=4 * 500**0.5)


def test_clients_active_at_once_share_the_rate() -> None:
    always = client("always")
    half = client("half", lifecycle=lifecycle(window(0, 50 * SECOND)))
    requests = generated(always, half, num_requests=0, horizon=100 * SECOND).requests
    assert len(of(requests, "always")) == pytest.approx(500, abs=4 * 500**0.5)
    assert len(of(requests, "half")) == pytest.approx(250, abs=4 * 250**0.5)


def test_a_window_far_away_is_reached() -> None:
    day = 86_400 * SECOND
    requests = generated(client(lifecycle=lifecycle(window(day, 2 * day))), num_requests=5).requests
    assert len(requests) == 5
    assert all(each.arrival_us >= day for each in requests)


def test_a_window_with_a_rate_of_its_own_is_filled_to_the_last_but_one() -> None:
    windows = lifecycle(window(SECOND, 6 * SECOND, trace_rate=2.0), window(9 * SECOND, 10 * SECOND, trace_rate=30.0))
    requests = generated(client(lifecycle=windows), aggregate_rate=0, num_requests=0).requests
    arrivals = [each.arrival_us for each in requests]
    assert sum(SECOND <= at < 6 * SECOND for at in arrivals) == 9
    assert sum(9 * SECOND <= at < 10 * SECOND for at in arrivals) == 29
    assert len(arrivals) == 38


def test_windows_have_habits_of_their_own() -> None:
    seven = {"type": "constant", "params": {"value": 7}}
    windows = lifecycle(
        window(0, 10 * SECOND, input_distribution=seven, arrival={"process": "constant"}),
        window(10 * SECOND, 20 * SECOND, output_distribution=seven),
    )
    requests = generated(client(lifecycle=windows), num_requests=0).requests
    early = [each for each in requests if each.arrival_us < 10 * SECOND]
    late = [each for each in requests if each.arrival_us >= 10 * SECOND]
    assert {(each.input_tokens, each.output_tokens) for each in early} == {(7, 10)}
    assert {(each.input_tokens, each.output_tokens) for each in late} == {(10, 7)}
    assert (len(early), len(late)) == (99, 99)
    gaps = [after.arrival_us - before.arrival_us for before, after in pairwise(early)]
    assert 99_999 <= min(gaps) <= max(gaps) <= 100_001


def test_windows_with_habits_still_have_prefixes_and_deadlines() -> None:
    windows = lifecycle(window(0, SECOND, trace_rate=10))
    requests = generated(client(prefix_group="g", timeout=5, lifecycle=windows), num_requests=0).requests
    assert len(requests) > 5
    assert all(each.prefix_tokens == 50 and each.deadline_us == each.arrival_us + 5 for each in requests)


def test_with_an_aggregate_rate_window_rates_are_weights() -> None:
    windows = (lifecycle(window(0, 10 * SECOND, trace_rate=each)) for each in (300.0, 100.0))
    clients = [client(name, lifecycle=each) for name, each in zip("ab", windows, strict=True)]
    requests = generated(*clients, aggregate_rate=40, num_requests=0).requests
    assert Counter(each.client_id for each in requests) == {"a": 299, "b": 99}


def test_the_first_client_of_a_group_decides_its_length() -> None:
    clients = (client("a", prefix_group="g", prefix_length=30), client("b", prefix_group="g", prefix_length=99))
    requests = generated(*clients).requests
    assert {(each.client_id, each.prefix_tokens) for each in requests} == {("a", 30), ("b", 30)}


def test_multimodal_prompts_sum_up_their_parts() -> None:
    count = {"type": "empirical", "params": {"0": 1, "1": 1, "3": 1}}
    multimodal = {
        "text_distribution": CONSTANT_10,
        "image_distribution": GAUSSIAN,
        "image_count_distribution": count,
        "video_distribution": CONSTANT_10,
        "video_count_distribution": count,
    }
    requests = generated(client(multimodal=multimodal), num_requests=300).requests
    assert all(each.input_tokens == 10 + each.image_tokens + each.video_tokens for each in requests)
    assert {each.video_tokens for each in requests} == {0, 10, 30}
    assert {each.audio_tokens for each in requests} == {0}
    assert sum(each.image_tokens for each in requests) / 300 == pytest.approx(100 * 4 / 3, rel=0.2)


def test_the_share_of_reasoning_is_a_whole_percentage() -> None:
    ratio = {"type": "empirical", "params": {"0": 1, "40": 1, "300": 1}}
    requests = generated(client(reasoning={"reason_ratio_distribution": ratio})).requests
    assert {each.reason_ratio for each in requests} == {0.0, 0.4, 1.0}


def test_a_timeout_given_from_outside_holds_for_every_client() -> None:
    read = spec(client("a", timeout=5), client("b"))
    assert {each.deadline_us - each.arrival_us for each in generate(read, timeout_us=70).requests} == {70}
    assert {each.deadline_us for each in generate(read, timeout_us=0).requests} == {0}


def test_goodput_targets_are_passed_on() -> None:
    targets = generated(client(), goodput_slo_targets={"batch": {"ttft_ms": 5}}).goodput_slo_targets
    assert (targets["batch"].ttft_ms, targets["batch"].e2e_ms) == (5, 0)


def test_members_of_a_cohort_share_its_rate() -> None:
    requests = generated(cohorts=[cohort("h", population=4, prefix_group="g")], num_requests=2_000).requests
    assert Counter(each.client_id for each in requests).keys() == {"h-0", "h-1", "h-2", "h-3"}
    assert requests[-1].arrival_us == pytest.approx(200 * SECOND, rel=0.1)
    assert {each.prefix_group for each in requests} == {"g"}


def test_members_may_have_prefixes_of_their_own() -> None:
    requests = generated(cohorts=[cohort(prefix_group="g", prefix_sharing="per_member")]).requests
    assert {(each.client_id, each.prefix_group) for each in requests} == {("h-0", "g-0"), ("h-1", "g-1")}


def test_a_day_has_its_peak_and_its_trough() -> None:
    diurnal = {"peak_hour": 14, "peak_to_trough_ratio": 4}
    requests = generated(cohorts=[cohort(population=1, diurnal=diurnal)], aggregate_rate=0.5, num_requests=0).requests
    hours = Counter(each.arrival_us // (3_600 * SECOND) for each in requests)
    assert len(hours) == 24
    assert hours[14] / hours[2] == pytest.approx(4, rel=0.2)
    assert hours[20] / hours[14] == pytest.approx(0.625, rel=0.1)


def test_a_drain_gets_ever_quieter() -> None:
    drain = {"start_time_us": 100 * SECOND, "ramp_duration_us": 100 * SECOND}
    requests = generated(cohorts=[cohort(population=1, drain=drain)], num_requests=0).requests
    tens = Counter(each.arrival_us // (10 * SECOND) for each in requests)
    assert tens[5] == pytest.approx(100, abs=40)
    assert tens[10] == pytest.approx(100, abs=40)
    assert tens[15] == pytest.approx(50, abs=28)
    assert tens[19] == pytest.approx(10, abs=10)
    assert max(tens) == 19


def test_a_spike_without_a_rate_is_when_the_cohort_is_active() -> None:
    spike = {"start_time_us": 5 * SECOND, "duration_us": 10 * SECOND}
    requests = generated(cohorts=[cohort(spike=spike)], num_requests=0).requests
    assert len(requests) == pytest.approx(100, abs=40)
    assert all(5 * SECOND <= each.arrival_us < 15 * SECOND for each in requests)


@pytest.mark.parametrize("turns", [False, True])
def test_stages_of_inference_perf_follow_each_other(turns: bool) -> None:
    section = {
        "stages": [{"rate": 30, "duration": 10}, {"rate": 60, "duration": 5}],
        "shared_prefix": {
            "num_unique_system_prompts": 2,
            "num_users_per_system_prompt": 5,
            "system_prompt_len": 64,
            "question_len": 0,
            "output_len": 20,
            "enable_multi_turn_chat": turns,
        },
    }
    workload = generated(clients=None, inference_perf=section, aggregate_rate=None, num_requests=0)
    first = [*workload.requests, *(session.first for session in workload.sessions)]
    assert {each.input_tokens for each in first} == {1}
    assert all(each.client_id.startswith("stage-0") == (each.arrival_us < 10 * SECOND) for each in first)
    if turns:
        assert sum(1 + len([*session.later]) for session in workload.sessions) == 600
        assert {each.think_time_us for session in workload.sessions for each in session.later} == {333_333, 166_667}
    else:
        assert Counter(each.client_id.partition("-prompt")[0] for each in first) == {"stage-0": 300, "stage-1": 300}


def waiting_stages(*stages: tuple[int, int], **keys: Any) -> Workload:
    section = {
        "concurrent_stages": [{"num_requests": count, "concurrency_level": level} for count, level in stages],
        "shared_prefix": {
            "num_unique_system_prompts": 2,
            "num_users_per_system_prompt": 2,
            "system_prompt_len": 64,
            "question_len": 10,
            "output_len": 20,
        },
    }
    return generated(clients=None, inference_perf=section, aggregate_rate=None, **keys)


def test_concurrent_stages_are_limited_like_other_workloads() -> None:
    whole = waiting_stages((20, 4), (9, 3), num_requests=0)
    assert len(whole.rows) == 29
    assert [row.request_id for row in whole.rows] == list(range(29))
    assert waiting_stages((20, 4), (9, 3), num_requests=7).rows == whole.rows[:7]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (((2_000_000, 4),), "expected at most 1000000 requests, got 2000000"),
        (((9, 10_000), (9, 10_000)), "expected at most 10000000 waits for stages, got 100000000"),
    ],
)
def test_concurrent_stages_beyond_all_memory_are_refused(stages: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        waiting_stages(*stages, num_requests=0)


def quick(**keys: Any) -> float:
    """Seconds to generate, the best of two: the machine may be busy."""
    lengths = Preset(Lengths(256, 100, 2, 800), Lengths(256, 100, 2, 800))
    asked = rate_spec(lengths, rate=100, seed=1, arrival=Arrival(process="poisson"), **keys)
    seconds = []
    for _ in range(2):
        began = time.process_time()
        assert len(generate(asked).requests) == asked.num_requests
        seconds.append(time.process_time() - began)
    return min(seconds)


def test_20_000_requests_take_no_time() -> None:
    assert quick(num_requests=20_000) < 0.3


def test_a_cohort_of_thousands_takes_seconds_at_most() -> None:
    began = time.process_time()
    workload = generated(cohorts=[cohort(population=2_000, input_distribution=GAUSSIAN)], num_requests=10_000)
    assert len(workload.requests) == 10_000
    assert time.process_time() - began < 5


def test_a_generated_request_is_read_only() -> None:
    (request, *_) = generated(client()).requests
    with pytest.raises(AttributeError):
        request.arrival_us = 5  # type: ignore[misc]


def test_a_workload_that_ends_before_its_number_of_requests_has_a_note() -> None:
    few = generated(client(), num_requests=500, horizon=2 * SECOND)
    (note,) = few.notes
    assert note == f"{len(few.requests)} of the 500 requests of num_requests arrive before the workload ends"
    assert generated(client(), num_requests=5).notes == ()
