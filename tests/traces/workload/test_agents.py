"""Agents of a workload spec: turns, helpers side by side, joins, pauses for tools, and context that grows."""

from typing import Any

import pytest

from tests.traces.workload.specs import CONSTANT_10, MULTI_TURN, client, generated, spec, users
from traces import TraceError, TraceRow
from traces.graph import ids_in
from traces.workload.spec import parse_spec, spec_text


def constant(value: int) -> dict[str, Any]:
    return {"type": "constant", "params": {"value": value}}


def agent(name: str = "a", turns: int = 3, helpers: int | None = 2, **keys: Any) -> dict[str, Any]:
    """A client of agents: requests of 10 tokens, replies of 10, tools that take 5 ms."""
    given: dict[str, Any] = {
        "turns_distribution": constant(turns),
        "helpers_distribution": None if helpers is None else constant(helpers),
        "tool_time_ms_distribution": constant(5),
        **{key: keys.pop(key) for key in list(keys) if key.startswith(("helper", "task", "tool", "turns"))},
    }
    written = {key: value for key, value in given.items() if value is not None}
    return client(name, **{"arrival": {"process": "constant"}, "agent": written, **keys})


def session_of(rows: list[TraceRow], name: str) -> list[TraceRow]:
    """The rows of one session in the order in which they were laid out."""
    return sorted((row for row in rows if row.session_id == name), key=lambda row: row.round_index)


def links(rows: list[TraceRow]) -> list[tuple[int, list[int], int | None]]:
    """For each row its place, the places of its parents and of the row whose text it repeats."""
    place = {row.request_id: number for number, row in enumerate(rows)}
    return [
        (number, [place[each] for each in ids_in(row.parents)], place[int(row.context_of)] if row.context_of else None)
        for number, row in enumerate(rows)
    ]


def test_a_turn_starts_helpers_and_the_next_one_joins_them() -> None:
    rows = generated(agent(helper_turns_distribution=constant(2)), num_requests=1).rows
    assert links(session_of(rows, "a_agent_0")) == [
        (0, [], None),
        (1, [0], 0),
        (2, [1], 1),
        (3, [0], 0),
        (4, [3], 3),
        (5, [2, 4], 0),
        (6, [5], 5),
        (7, [6], 6),
        (8, [5], 5),
        (9, [8], 8),
        (10, [7, 9], 5),
    ]


def test_prompts_hold_the_conversation_and_the_replies_of_joined_helpers() -> None:
    """Each request has 10 tokens of its own and is answered with 10; the task has 40, the instructions 100."""
    keys: dict[str, Any] = {"prefix_group": "g", "prefix_length": 100, "task_distribution": constant(40)}
    rows = session_of(generated(agent(turns=2, **keys), num_requests=1).rows, "a_agent_0")
    assert [(row.prefix_length, row.input_tokens, row.context_tokens) for row in rows] == [
        (100, 40, 0),
        (100, 60, 150),
        (100, 60, 150),
        (100, 80, 150),
    ]
    assert {row.prefix_group for row in rows} == {"g"}


def test_spawned_helpers_begin_anew_behind_a_prefix_of_their_own() -> None:
    keys: dict[str, Any] = {
        "helper_context": "spawn",
        "helper_prefix_length": 30,
        "helper_turns_distribution": constant(2),
    }
    rows = session_of(generated(agent(turns=2, **keys), num_requests=1).rows, "a_agent_0")
    shown = [(row.prefix_group, row.prefix_length, row.input_tokens, row.context_tokens) for row in rows]
    helper = [("a-helpers", 30, 10, 0), ("a-helpers", 30, 30, 50)]
    assert shown == [("", 0, 10, 0), *helper, *helper, ("", 0, 50, 20)]


def test_estimated_arrivals_take_a_microsecond_per_token_and_the_time_of_tools() -> None:
    rows = session_of(generated(agent(turns=2), num_requests=1).rows, "a_agent_0")
    begun = rows[0].arrival_time_us
    assert [row.arrival_time_us - begun for row in rows] == [0, 5_010, 5_010, 10_020]
    assert [row.think_time_us for row in rows] == [0, 5_000, 5_000, 5_000]


def test_rows_ascend_and_are_numbered_by_their_place_beside_requests_and_conversations() -> None:
    workload = generated(agent(), client("plain"), client("talk", reasoning=MULTI_TURN), num_requests=60)
    arrivals = [row.arrival_time_us for row in workload.rows]
    assert arrivals == sorted(arrivals)
    assert [row.request_id for row in workload.rows] == list(range(len(arrivals)))
    assert workload.requests == []
    assert workload.sessions == []
    talk = session_of(workload.rows, "talk_session_0")
    assert links(talk) == [(0, [], None), (1, [0], 0), (2, [1], 1)]
    assert [(row.input_tokens, row.context_tokens) for row in talk] == [(10, 0), (30, 20), (50, 40)]


def test_agents_that_have_begun_run_to_their_end() -> None:
    rows = generated(agent(), num_requests=9).rows
    begun = {row.session_id for row in rows}
    assert len(begun) > 1
    assert len(rows) == 7 * len(begun)


def test_agents_in_open_loop_are_cut_and_keep_their_times() -> None:
    workload = generated(agent(closed_loop=False), num_requests=9)
    assert len(workload.rows) == 9
    assert workload.fixed_sessions == {row.session_id for row in workload.rows}


def test_more_agents_begin_with_the_same_ones() -> None:
    varied = agent(
        helpers_distribution={"type": "empirical", "params": {"0": 0.5, "3": 0.5}},
        turns_distribution={"type": "exponential", "params": {"mean": 4}},
        input_distribution={"type": "exponential", "params": {"mean": 50}},
    )
    few, many = generated(varied, num_requests=20).rows, generated(varied, num_requests=200).rows
    for name in {row.session_id for row in few}:
        one, other = session_of(few, name), session_of(many, name)
        assert [(row.input_tokens, row.output_tokens) for row in one] == [
            (row.input_tokens, row.output_tokens) for row in other
        ]
        assert links(one) == links(other)
    assert generated(varied, num_requests=20).rows == few
    assert generated(varied, num_requests=20, seed=2).rows != few


def test_requests_of_agents_have_timeouts_like_those_of_conversations() -> None:
    row = generated(agent(), num_requests=1).rows[0]
    assert row.deadline_us == row.arrival_time_us + 300_000_000


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"reasoning": MULTI_TURN}, "clients[0].agent: expected no reasoning beside it, got both"),
        ({"multimodal": {}}, "clients[0].agent: expected no multimodal beside it, got both"),
        ({"helper_context": "clone"}, "clients[0].agent.helper_context: expected fork or spawn, got 'clone'"),
        (
            {"tool_time_ms_distribution": {"type": "constant", "params": {}}},
            "clients[0].agent.tool_time_ms_distribution.params: expected value with constant, but the key is missing",
        ),
    ],
)
def test_an_agent_that_makes_no_sense_is_refused(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(TraceError, match="key clients") as caught:
        generated(agent(**keys))
    assert expected in str(caught.value)


def test_agents_beside_users_are_refused() -> None:
    with pytest.raises(TraceError, match=r"clients\[1\].agent: expected no agents beside concurrency users"):
        generated(users(), agent())


@pytest.mark.parametrize("keys", [{"turns": 20_000}, {"helpers": 20_000}, {"turns": 200, "helpers": 200}])
def test_an_endless_agent_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="for one session, expected at most 10000"):
        generated(agent(**keys), num_requests=1)


def test_settings_of_helpers_without_helpers_are_named() -> None:
    notes = generated(agent(helpers=None, helper_prefix_length=5)).notes
    assert notes == ("clients[0].agent: helper_prefix_length has no effect without a helpers_distribution",)
    notes = generated(agent(helper_prefix_length=5)).notes
    assert notes == ("clients[0].agent: helper_prefix_length has no effect with helper_context fork",)


def test_a_spec_with_agents_is_written_as_one_that_reads_back() -> None:
    given = spec(agent(helper_context="spawn", helper_prefix_length=5, task_distribution=CONSTANT_10))
    assert parse_spec(spec_text(given), "spec.yaml") == given
