"""Agents of a trace sent to a server: what waits for what, whose text prompts repeat, and what is recorded of it."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError, OptionError
from observe.options import ObserveOptions
from observe.workload import plan_of
from tests.agent_traces import agent
from tests.replay.small_traces import row, written
from traces import TraceRow
from traces.graph import ids_in
from traces.load import SpeedOptions

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def prompt_of(seen: list[dict[str, Any]], rows: list[TraceRow]) -> dict[int, str]:
    """The prompts that came, by request id."""
    by_id = {each["headers"].get("x-request-id"): each["body"]["prompt"] for each in seen}
    return {each.request_id: by_id[each.x_request_id] for each in rows}


def test_children_are_sent_their_pause_after_all_their_parents_and_repeat_the_conversation(
    observe: Observe, seen: Seen, tmp_path: Path
) -> None:
    rows = agent(0, 0, Random(1))
    run = observe(trace=str(written(tmp_path, rows)), model="ok-20-1", session_mode="closed-loop")
    found = {each.request_id: each for each in run.trace.rows}
    assert {each.status for each in found.values()} == {"ok"}
    assert set(found) == {each.request_id for each in rows}
    prompts = prompt_of(seen(), run.trace.rows)
    for given in rows:
        sent = found[given.request_id]
        assert (sent.parents, sent.think_time_us) == (
            given.parents,
            max(given.think_time_us, 1 if given.parents else 0),
        )
        for parent in ids_in(given.parents):
            assert sent.send_time_us >= found[parent].last_chunk_time_us + given.think_time_us
        assert sent.server_input_tokens == given.input_tokens
        assert sent.context_tokens == given.context_tokens
        if given.context_of:
            reply = " x" * found[int(given.context_of)].output_tokens
            assert prompts[given.request_id].startswith(prompts[int(given.context_of)] + reply + " ")


def test_at_their_own_times_prompts_repeat_prompts_and_stand_in_for_replies(
    observe: Observe, seen: Seen, tmp_path: Path
) -> None:
    rows = [row(each.request_id, 0, **fields(each)) for each in agent(0, 0, Random(1))]
    run = observe(trace=str(written(tmp_path, rows)), model="ok")
    by_id = {each.request_id: each for each in run.trace.rows}
    prompts = prompt_of(seen(), run.trace.rows)
    for given in rows:
        sent = by_id[given.request_id]
        assert (sent.parents, sent.server_input_tokens) == (given.parents, given.input_tokens)
        if given.context_of:
            before = by_id[int(given.context_of)]
            assert prompts[given.request_id].startswith(prompts[before.request_id] + " ")
            assert sent.context_tokens == before.server_input_tokens


def fields(given: TraceRow) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "parents", "think_time_us", "context_tokens", "context_of")
    return {name: getattr(given, name) for name in names}


def test_prompts_share_the_number_of_tokens_in_the_trace(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    """As of hashed blocks: no request waits, and one shares less with the other than that one has."""
    rows = [
        row(0, 0, input_tokens=40),
        row(1, 10, input_tokens=60, context_of="0", context_tokens=32),
        row(2, 20, input_tokens=50, context_of="1", context_tokens=48),
        row(3, 30, input_tokens=30, context_of="2", context_tokens=20),
        row(4, 30, input_tokens=20, context_of="3", context_tokens=30),
    ]
    run = observe(trace=str(written(tmp_path, rows)), model="ok")
    words = {number: text.split() for number, text in prompt_of(seen(), run.trace.rows).items()}
    assert [len(words[each.request_id]) for each in rows] == [40, 60, 50, 30, 20]
    assert [num_common(words[a], words[b]) for a, b in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (3, 4))] == [
        32,
        48,
        32,
        20,
        20,
        19,
    ]


def num_common(one: list[str], other: list[str]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(map(len, (one, other)))
    )


def test_a_part_of_a_prompt_with_replies_is_repeated_up_to_a_turn(observe: Observe, tmp_path: Path) -> None:
    rows = [
        row(0, 0, input_tokens=40, output_tokens=6),
        row(1, 10, input_tokens=66, parents="0", context_tokens=46),
        row(2, 20, input_tokens=90, parents="1", context_of="1", context_tokens=50),
        row(3, 20, input_tokens=90, parents="1", context_of="1", context_tokens=20),
    ]
    run = observe(trace=str(written(tmp_path, rows)), model="ok", session_mode="closed-loop")
    found = {each.request_id: (each.server_input_tokens, each.context_tokens) for each in run.trace.rows}
    assert found == {0: (40, 0), 1: (66, 46), 2: (90, 50), 3: (90, 20)}


def test_requests_waiting_for_a_failed_request_are_dropped_and_counted(observe: Observe, tmp_path: Path) -> None:
    """The server refuses every other request: the first of the chain or the second."""
    rows = [row(0), *(row(n, n, parents=str(n - 1)) for n in range(1, 4))]
    run = observe(trace=str(written(tmp_path, rows)), model="flaky", session_mode="closed-loop")
    assert [each.status for each in run.trace.rows] in (["error"], ["ok", "error"])
    assert f"{4 - len(run.trace.rows)} requests were not sent: a request that they wait for was" in run.messages


def test_conversations_of_a_trace_wait_for_their_replies(observe: Observe, tmp_path: Path) -> None:
    rows = [row(n, n, session_id="s", round_index=n, think_time_us=20_000 * (n > 0)) for n in range(3)]
    found = observe(trace=str(written(tmp_path, rows)), model="ok-20-1", session_mode="closed-loop").trace.rows
    assert [each.round_index for each in sorted(found, key=lambda each: each.send_time_us)] == [0, 1, 2]
    for before, after in pairwise(found):
        assert after.send_time_us - before.last_chunk_time_us >= 20_000


def test_a_warm_up_leaves_parents_out_and_the_recording_can_be_read(observe: Observe, tmp_path: Path) -> None:
    rows = [row(0), row(1, 5, parents="0"), row(2, 6, parents="1")]
    run = observe(trace=str(written(tmp_path, rows)), model="ok", session_mode="closed-loop", warmup_requests=1)
    assert [(each.request_id, each.parents) for each in run.trace.rows] == [(1, "0"), (2, "1")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"session_mode": "closed-loop", "rate": 1.0, "num_requests": 1}, "--session-mode closed-loop needs --trace"),
        ({"trace": "x.yaml", "think_time_ms": 3}, "--think-time-ms needs --session-mode closed-loop"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        ObserveOptions(url="http://localhost:1", output="out", **given)


def test_a_trace_is_sent_as_many_times_as_fast_as_asked(tmp_path: Path) -> None:
    header = written(tmp_path, [row(number, 5_000 + 13_000 * number) for number in range(3)])
    options = ObserveOptions(url="http://h:1", output="out", trace=str(header), speed=SpeedOptions(speedup=1.3))
    assert [each.at_us for each in plan_of(options).requests] == [0, 10_000, 20_000]


def test_a_speedup_without_a_trace_is_refused() -> None:
    with pytest.raises(OptionError, match="--speedup needs --trace"):
        ObserveOptions(url="http://h:1", output="out", rate=1.0, num_requests=2, speed=SpeedOptions(speedup=2.0))
