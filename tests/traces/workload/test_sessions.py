"""Conversations: rounds stamped in advance, or released by the replies."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from tests.traces.workload.specs import CONSTANT_10, MULTI_TURN, client, generated, users
from traces.workload.request import Round, Session, WorkloadRequest

GAUSSIAN = {"type": "gaussian", "params": {"mean": 100, "std_dev": 30, "min": 1, "max": 500}}


def of_length(rounds: int, **keys: Any) -> dict[str, Any]:
    return {"multi_turn": {"max_rounds": rounds, "think_time_us": 1_000, **keys}}


def open_loop(**keys: Any) -> list[tuple[str, int, int, int]]:
    conversing = client(closed_loop=False, arrival={"process": "constant"}, **keys)
    requests = generated(conversing, num_requests=6, aggregate_rate=50).requests
    return [(each.session_id, each.round_index, each.arrival_us, each.input_tokens) for each in requests]


def test_open_loop_rounds_come_a_pause_and_a_microsecond_per_token_apart() -> None:
    assert open_loop(reasoning=of_length(3)) == [
        ("c_session_0", 0, 20_000, 10),
        ("c_session_0", 1, 21_010, 10),
        ("c_session_0", 2, 22_020, 10),
        ("c_session_1", 0, 40_000, 10),
        ("c_session_1", 1, 41_010, 10),
        ("c_session_1", 2, 42_020, 10),
    ]


def test_an_accumulated_context_holds_all_prompts_and_replies() -> None:
    inputs = [each[3] for each in open_loop(reasoning=of_length(3, context_growth="accumulate"))]
    assert inputs == [10, 30, 50, 10, 30, 50]


def test_num_requests_cuts_conversations_stamped_in_advance() -> None:
    conversing = client(closed_loop=False, reasoning=of_length(50), arrival={"process": "constant"})
    requests = generated(conversing, num_requests=120).requests
    assert len(requests) == 120
    begun = Counter(each.session_id for each in requests)
    assert begun["c_session_0"] == 50
    assert 0 < begun[max(begun)] < 50


def test_closed_loop_conversations_are_given_as_what_is_to_come() -> None:
    workload = generated(client(reasoning=MULTI_TURN, timeout=7), num_requests=30)
    assert workload.requests == []
    first = workload.sessions[0].first
    assert (first.round_index, first.keeps_context, first.deadline_us) == (0, True, first.arrival_us + 7)
    assert list(workload.sessions[0].later) == [Round(10, 10, 1_000), Round(10, 10, 1_000)]
    arrivals = [session.first.arrival_us for session in workload.sessions]
    assert arrivals == sorted(arrivals)


def test_conversations_begin_until_they_have_the_requested_number_of_requests() -> None:
    far_apart = client(reasoning=MULTI_TURN, arrival={"process": "constant"})
    assert len(generated(far_apart, num_requests=30).sessions) == 10
    assert len(generated(far_apart, num_requests=31).sessions) == 11


def test_a_single_session_begins_once() -> None:
    workload = generated(client(reasoning=of_length(4, single_session=True)), num_requests=0)
    (session,) = workload.sessions
    assert len([*session.later]) == 3


def test_a_follow_up_has_the_fields_of_a_request() -> None:
    session = generated(client(reasoning=MULTI_TURN, prefix_group="g", streaming=True), num_requests=1).sessions[0]
    following = session.next_request(session.first, 8, Round(5, 6, 70, reason_ratio=0.5), 900)
    assert following.input_tokens == 10 + 8 + 5, "the reply that really came, not the one that was planned"
    assert (following.output_tokens, following.round_index, following.think_time_us) == (6, 1, 70)
    assert (following.arrival_us, following.deadline_us) == (900, 900 + 300_000_000)
    assert (following.prefix_group, following.prefix_tokens, following.streaming) == ("g", 50, True)
    assert following.session_id == session.first.session_id


def test_without_growth_a_follow_up_forgets() -> None:
    session = generated(client(reasoning=of_length(3)), num_requests=1).sessions[0]
    assert session.next_request(session.first, 8, Round(5, 6, 70), 900).input_tokens == 5


def test_a_follow_up_without_a_timeout_has_no_deadline() -> None:
    session = generated(client(reasoning=MULTI_TURN, timeout=0), num_requests=1).sessions[0]
    assert session.next_request(session.first, 8, Round(5, 6, 70), 900).deadline_us == 0


def rounds_of(session: Session, count: int) -> list[Round]:
    return list(islice(session.later, count))


def test_users_go_on_without_end_and_always_in_the_same_way() -> None:
    workload = generated(users(input_distribution=GAUSSIAN, think_time_us=300), aggregate_rate=None)
    one, other, _ = workload.sessions
    assert len(rounds_of(one, 100)) == 100
    assert rounds_of(one, 100) == rounds_of(one, 100)
    assert rounds_of(one, 100) != rounds_of(other, 100)
    assert rounds_of(one, 1)[0].input_tokens != one.first.input_tokens
    assert {each.think_time_us for each in rounds_of(one, 20)} == {300}


def test_users_begin_spread_over_a_pause() -> None:
    workload = generated(users(concurrency=4, think_time_us=1_000), aggregate_rate=None)
    assert [session.first.arrival_us for session in workload.sessions] == [0, 250, 500, 750]
    assert workload.max_requests == 100


def test_users_that_would_begin_after_the_horizon_stay_away() -> None:
    workload = generated(users(concurrency=4, think_time_us=1_000), aggregate_rate=None, horizon=500)
    assert len(workload.sessions) == 3
    assert workload.horizon_us == 500


def test_more_users_change_nothing_of_those_that_are_there() -> None:
    few = generated(users(concurrency=2, input_distribution=GAUSSIAN), aggregate_rate=None).sessions
    many = generated(users(concurrency=9, input_distribution=GAUSSIAN), aggregate_rate=None).sessions
    assert [rounds_of(each, 20) for each in few] == [rounds_of(each, 20) for each in many[:2]]


def test_users_and_clients_at_a_rate_can_be_mixed() -> None:
    workload = generated(users(), client(), num_requests=20)
    assert (len(workload.requests), len(workload.sessions), workload.max_requests) == (20, 3, 20)


@pytest.mark.parametrize("closed_loop", [True, False])
def test_rounds_have_modalities_and_ratios(closed_loop: bool) -> None:
    multimodal = {"text_distribution": CONSTANT_10, "audio_distribution": GAUSSIAN}
    multimodal["audio_count_distribution"] = {"type": "constant", "params": {"value": 2}}
    reasoning = {**of_length(3), "reason_ratio_distribution": {"type": "constant", "params": {"value": 25}}}
    conversing = client(closed_loop=closed_loop, reasoning=reasoning, multimodal=multimodal)
    workload = generated(conversing, num_requests=30)
    later = [each for session in workload.sessions for each in session.later]
    everything: list[WorkloadRequest | Round] = [*workload.requests, *later]
    for each in everything:
        assert each.input_tokens == 10 + each.audio_tokens
        assert each.reason_ratio == 0.25
    assert len(workload.requests) + len(later) > 15
