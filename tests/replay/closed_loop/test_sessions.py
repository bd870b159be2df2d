"""Requests that wait for replies: send times, prompts, and the end of a session."""

from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Outcome
from replay.closed_loop import simulate_workload
from replay.simulation.simulate import Simulated
from tests.examples import examples
from tests.fakes import TestLatency, config
from tests.replay.detailed import in_detail
from tests.replay.generated_requests import conversation, sent, workload
from traces.workload.request import Round, Session, Workload

STEP_US = 1_000
PLAIN = TestLatency(step_us=STEP_US)
SLOW = TestLatency(step_us=STEP_US, queueing_us=300, output_token_time=7, post_decode_time=50)
"""A reply of three tokens takes 300 + 3 * 1,007 + 50 = 3,371 us."""


def run(
    given_workload: Workload,
    latency: TestLatency = PLAIN,
    horizon_us: int | None = None,
    reports_steps: bool = True,
    **settings: int | str,
) -> Simulated:
    return simulate_workload(Engine(config(**settings), latency, reports_steps), given_workload, horizon_us)  # type: ignore[arg-type]


def arrivals(simulated: Simulated) -> list[tuple[str, int]]:
    return [(each.row.session_id, each.arrived_at) for each in simulated.requests]


def test_a_follow_up_is_sent_a_pause_after_the_last_token_has_arrived() -> None:
    simulated = run(workload(sessions=[conversation(500, 20)]), SLOW)
    assert arrivals(simulated) == [("s", 0), ("s", 3_871), ("s", 3_871 + 3_391)]
    assert [each.e2e_us for each in simulated.requests] == [3_371, 3_371, 3_371]


def test_with_vllm_scheduling_overheads_do_not_delay_a_reply_more_than_once() -> None:
    simulated = run(workload(sessions=[conversation(500)]), SLOW, engine="vllm")
    (first, _) = simulated.requests
    assert first.e2e_us == 300 + 3 * STEP_US + 7 + 50
    assert arrivals(simulated)[1] == ("s", first.e2e_us + 500)


def test_without_a_pause_a_follow_up_comes_after_its_reply_not_with_it() -> None:
    assert arrivals(run(workload(sessions=[conversation(0)]))) == [("s", 0), ("s", 3 * STEP_US + 1)]


def test_a_reply_without_tokens_is_there_when_its_prompt_is_computed() -> None:
    silent = Session(first=sent(session_id="s", output_tokens=0), later=[Round(10, 3, 500)], timeout_us=0)
    simulated = run(workload(sessions=[silent]), SLOW)
    assert arrivals(simulated)[1] == ("s", 300 + STEP_US + 7 + 500)
    assert simulated.requests[0].e2e_us == 300 + STEP_US + 7


def test_requests_are_numbered_in_order_of_arrival() -> None:
    known = [sent(at) for at in (0, 3_400, 9_000)]
    simulated = run(workload(known, [conversation(500, 500, arrival_us=10)], None))
    assert [each.id for each in simulated.requests] == [f"request_{n}" for n in range(6)]
    assert [each.number for each in simulated.requests] == list(range(6))
    times = [at for _, at in arrivals(simulated)]
    assert times == sorted(times)


def test_a_request_with_a_deadline_has_one_in_every_round() -> None:
    simulated = run(workload(sessions=[conversation(500, timeout_us=90_000)]))
    assert [each.row.deadline_us - each.arrived_at for each in simulated.requests] == [90_000, 90_000]


def test_a_session_ends_when_a_reply_does_not_come_in_time() -> None:
    simulated = run(workload(sessions=[conversation(500, 500, timeout_us=1_500)]))
    assert [each.outcome for each in simulated.requests] == [Outcome.TIMED_OUT]


def test_a_session_ends_when_a_request_is_refused() -> None:
    growing = conversation(500, 500, input_tokens=50, keeps_context=True)
    simulated = run(workload(sessions=[growing]), max_model_len=105)
    assert [each.outcome for each in simulated.requests] == [Outcome.COMPLETED, Outcome.DROPPED]


def test_no_request_is_sent_after_the_end_of_the_workload() -> None:
    given_workload = workload([sent(0)], [conversation(500, 500)], horizon_us=3_501)
    assert [at for _, at in arrivals(run(given_workload))] == [0, 0, 3_500]


def test_the_horizon_stops_the_clock() -> None:
    simulated = run(workload(sessions=[conversation(500, 500)]), horizon_us=4_000)
    assert [each.outcome for each in simulated.requests] == [Outcome.COMPLETED, None]
    assert simulated.engine.now is not None
    assert simulated.engine.now <= 4_000


def test_users_share_the_number_of_requests() -> None:
    users = [
        Session(first=sent(number, session_id=f"u{number}"), later=repeat(Round(10, 3, 500)), timeout_us=0)
        for number in range(3)
    ]
    simulated = run(workload(sessions=users, max_requests=8))
    assert len(simulated.requests) == 8
    assert [each.is_completed for each in simulated.requests] == [True] * 8


def test_more_users_than_requests_do_not_all_begin() -> None:
    users = [conversation(500, name=f"u{number}", arrival_us=number) for number in range(5)]
    assert arrivals(run(workload(sessions=users, max_requests=2))) == [("u0", 0), ("u1", 1)]


def test_each_round_finds_what_was_said_before() -> None:
    """Blocks of 4 tokens. All but the last of 16 + 8 tokens are computed, which fills 5 blocks; of 29 + 8, 8."""
    talk = Session(
        first=sent(session_id="s", input_tokens=16, output_tokens=8, keeps_context=True),
        later=[Round(5, 8, 500), Round(5, 8, 500)],
        timeout_us=0,
    )
    simulated = run(workload(sessions=[talk]))
    assert [each.input_tokens for each in simulated.requests] == [16, 29, 42]
    assert simulated.engine.kv.hit_tokens == 4 * (5 + 9)


def test_without_context_only_the_prefix_of_the_group_is_found() -> None:
    talk = conversation(500, 500, input_tokens=16, prefix_group="g", prefix_tokens=9)
    simulated = run(workload(sessions=[talk]))
    assert [each.input_tokens for each in simulated.requests] == [25, 25, 25]
    assert simulated.engine.kv.hit_tokens == 4 * (2 + 2)


def test_conversations_do_not_find_each_other() -> None:
    talks = [
        conversation(
            500, name=name, arrival_us=at, input_tokens=16, keeps_context=True, prefix_group="g", prefix_tokens=8
        )
        for at, name in ((0, "a"), (50_000, "b"))
    ]
    simulated = run(workload(sessions=talks))
    prefix, context = 2, 6
    assert simulated.engine.kv.hit_tokens == 4 * (context + prefix + context)


@st.composite
def workloads_with_sessions(draw: st.DrawFn) -> Workload:
    """Times on a coarse grid, so that ties occur."""
    lengths = st.integers(1, 30)
    known = sorted(
        (sent(500 * draw(st.integers(0, 20)), draw(lengths), draw(lengths)) for _ in range(draw(st.integers(0, 5)))),
        key=lambda request: request.arrival_us,
    )
    sessions = [
        Session(
            first=sent(500 * draw(st.integers(0, 20)), draw(lengths), draw(lengths), session_id=f"s{number}"),
            later=draw(
                st.lists(st.builds(Round, lengths, lengths, st.sampled_from([0, 500, 1_000, 7_000])), max_size=4)
            ),
            timeout_us=draw(st.sampled_from([0, 0, 5_000, 20_000])),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    return workload(known, sessions, draw(st.sampled_from([None, None, 5])), draw(st.sampled_from([None, 15_000])))


@pytest.mark.slow
@given(
    workloads_with_sessions(),
    st.sampled_from(["blis", "vllm"]),
    st.sampled_from([PLAIN, SLOW, TestLatency(step_us=500)]),
    st.integers(1, 4),
)
@settings(max_examples=examples(60))
def test_a_run_is_the_same_step_by_step_and_at_the_cost_of_what_changes(
    given_workload: Workload, scheduling: str, latency: TestLatency, max_num_seqs: int
) -> None:
    results = []
    for reports_steps in (True, False):
        simulated = run(
            given_workload, latency, reports_steps=reports_steps, engine=scheduling, max_num_seqs=max_num_seqs
        )
        simulated.engine.check_integrity()
        results.append(in_detail(simulated))
    assert results[0] == results[1]


@pytest.mark.slow
@given(workloads_with_sessions(), st.sampled_from(["blis", "vllm"]))
@settings(max_examples=examples(60))
def test_every_follow_up_waits_for_its_reply(given_workload: Workload, scheduling: str) -> None:
    simulated = run(given_workload, SLOW, engine=scheduling)
    measured = {(each.row.session_id, each.row.round_index): each for each in simulated.requests}
    for (session_id, round_index), each in measured.items():
        if session_id and round_index:
            before = measured[session_id, round_index - 1]
            assert before.is_completed
            assert before.e2e_us is not None
            # BLIS leaves time in which a request got nothing out of its E2E.
            reply_at = before.arrived_at + before.e2e_us
            assert each.arrived_at >= reply_at + max(1, each.row.think_time_us)


@pytest.mark.parametrize("with_sessions", [False, True])
def test_a_callback_is_called_for_each_request_that_ends(with_sessions: bool) -> None:
    reported: list[None] = []
    sessions = [conversation(500)] if with_sessions else []
    engine = Engine(config(), PLAIN)
    simulated = simulate_workload(
        engine, workload([sent(0), sent(5)], sessions), on_finished=lambda: reported.append(None)
    )
    assert len(reported) == len(simulated.requests)
