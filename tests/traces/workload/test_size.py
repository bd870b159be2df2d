"""Workloads that no memory has room for, refused before anything is drawn."""

from typing import Any

import pytest

from tests.traces.workload.specs import client, generated, lifecycle, users, window
from traces import TraceError
from traces.workload.generate import generate
from traces.workload.spec import parse_spec

DAY_US = 86_400_000_000
TURNS = {"multi_turn": {"max_rounds": 10_000, "think_time_us": 1}}
CROWDED = {
    "image_distribution": {"type": "constant", "params": {"value": 7}},
    "image_count_distribution": {"type": "constant", "params": {"value": 10**8}},
}


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ([client()], {"aggregate_rate": 1e6, "num_requests": 0, "horizon": DAY_US}, "about 8.6e+10 requests until"),
        ([client()], {"num_requests": 0, "horizon": 2**62}, "about 9e+10 requests until it ends, expected at most 1e"),
        ([client(reasoning=TURNS)], {"num_requests": 0, "horizon": DAY_US}, "about 8.6e+09 requests until it ends"),
        (
            [client(lifecycle=lifecycle(window(0, 10**18, trace_rate=5)))],
            {"num_requests": 9},
            "windows, stages or conversations of the workload have about 1e+13 requests, of which some are kept",
        ),
        (
            [client()],
            {"num_requests": 100_000, "aggregate_rate": 1e-9},
            "requests of num_requests before 9e+15 us: give it fewer or higher rates",
        ),
        (
            [client(multimodal=CROWDED)],
            {"num_requests": 3},
            "draw 1.6e+09 images, recordings or videos, expected at most 1e+09",
        ),
    ],
)
def test_too_much_is_refused_at_once(clients: list[dict[str, Any]], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as refused:
        generated(*clients, **settings)
    assert message in str(refused.value)


def test_stages_without_end_are_refused() -> None:
    shared = "num_unique_system_prompts: 1, num_users_per_system_prompt: 2, system_prompt_len: 1, question_len: 1"
    for chat in ("false", "true"):
        text = (
            f"inference_perf: {{stages: [{{rate: 10, duration: 1e15}}], shared_prefix: {{{shared}, output_len: 1,"
            f" enable_multi_turn_chat: {chat}}}}}"
        )
        with pytest.raises(TraceError, match="the workload has about 1e\\+16 requests until it ends"):
            generate(parse_spec(text, "perf.yaml"))


def test_a_generator_of_vidur_without_end_is_refused() -> None:
    text = "{horizon: 1000000000000000000, vidur: {interval: {type: poisson}, length: {type: fixed}}}"
    with pytest.raises(TraceError, match="the workload has about 5e\\+11 requests until it ends"):
        generate(parse_spec(text, "vidur.yaml"))


@pytest.mark.parametrize(
    ("key", "allowed"),
    [("theta: 1000000.0", "above 0 and at most 10"), ("max_tokens: 1000000000000", "between 1 and 100000000")],
)
def test_an_endless_sum_of_a_generator_of_vidur_is_refused(key: str, allowed: str) -> None:
    text = f"{{num_requests: 5, vidur: {{interval: {{type: static}}, length: {{type: zipf, {key}}}}}}}"
    with pytest.raises(TraceError, match=f"expected a (whole )?number {allowed}, got"):
        parse_spec(text, "vidur.yaml")


def test_users_without_end_are_refused() -> None:
    with pytest.raises(TraceError, match=r"the workload has about \d.*e\+1\d requests until it ends"):
        generated(users(), aggregate_rate=None, num_requests=0, horizon=10**18)
    with pytest.raises(TraceError, match=r"the workload has about 8\.3e"):
        generated(users(timeout=0), aggregate_rate=None, num_requests=0, horizon=10**18)


def test_a_number_of_requests_without_end_is_refused() -> None:
    with pytest.raises(TraceError, match="num_requests: expected a whole number between 0 and 100000000, got 10000000"):
        parse_spec(f"{{num_requests: {10**18}, clients: []}}", "many.yaml")


def test_few_of_many_long_conversations_are_drawn() -> None:
    long = {"multi_turn": {"max_rounds": 10_000, "think_time_us": 10**14}}
    workload = generated(client(reasoning=long), aggregate_rate=1000, num_requests=5)
    assert [session.first.arrival_us < 1_000_000 for session in workload.sessions] == [True] * 5


def test_few_of_a_workload_that_never_ends_are_drawn() -> None:
    assert len(generated(client(), aggregate_rate=1e6, num_requests=3, horizon=2**62).requests) == 3


@pytest.mark.slow
def test_a_window_far_in_the_future_has_only_its_own_requests() -> None:
    late = client(lifecycle=lifecycle(window(3 * DAY_US, 3 * DAY_US + 1_000_000)))
    assert len(generated(late, aggregate_rate=100, num_requests=0, horizon=4 * DAY_US).requests) > 50
