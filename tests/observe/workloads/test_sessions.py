"""Conversations of a trace sent anew: at their own times behind what was said before, or so many at a time."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import OptionError
from observe.options import ObserveOptions
from tests.replay.small_traces import row, written
from traces import TraceRow

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def talk(name: str, first_id: int, starts_us: int, gap_us: int, rounds: int = 3) -> list[TraceRow]:
    """A conversation of short rounds, each row with what it adds."""
    return [
        row(
            first_id + number,
            starts_us + number * gap_us,
            session_id=name,
            round_index=number,
            input_tokens=10,
            output_tokens=4,
        )
        for number in range(rounds)
    ]


def sent(run: Any) -> dict[tuple[str, int], TraceRow]:
    return {(each.session_id, each.round_index): each for each in run.trace.rows}


def test_rounds_at_their_own_times_go_behind_what_was_said(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    rows = [*talk("a", 0, 0, 80_000), *talk("b", 3, 10_000, 80_000)]
    run = observe(trace=str(written(tmp_path, rows)), model="ok", session_mode="fixed-accumulate")
    found = sent(run)
    prompts = {each["headers"].get("x-request-id"): each["body"]["prompt"] for each in seen()}
    for name, starts_us in (("a", 0), ("b", 10_000)):
        rounds = [found[name, number] for number in range(3)]
        assert [each.arrival_time_us for each in rounds] == [starts_us + 80_000 * number for number in range(3)]
        assert [each.server_input_tokens for each in rounds] == [10, 10 + 4 + 10, 24 + 4 + 10]
        assert [each.context_tokens for each in rounds] == [0, 14, 28]
        for before, after in pairwise(rounds):
            assert prompts[after.x_request_id].startswith(prompts[before.x_request_id] + " x" * 4 + " ")


def test_a_round_whose_time_comes_before_the_reply_waits_for_it(observe: Observe, tmp_path: Path) -> None:
    run = observe(
        trace=str(written(tmp_path, talk("a", 0, 0, 1_000))), model="ok-60-1", session_mode="fixed-accumulate"
    )
    rounds = [sent(run)["a", number] for number in range(3)]
    for before, after in pairwise(rounds):
        assert after.send_time_us > before.last_chunk_time_us
        assert after.arrival_time_us > before.arrival_time_us + 60_000


def test_a_pool_keeps_so_many_conversations_under_way(observe: Observe, tmp_path: Path) -> None:
    rows = [each for number in range(6) for each in talk(f"s{number}", 3 * number, 10**9 * number, 2_000)]
    run = observe(
        trace=str(written(tmp_path, rows)),
        model="ok-30-1",
        session_mode="closed-loop",
        session_pool=2,
        think_time_ms=1,
    )
    found = sent(run)
    assert len(found) == 18
    spans = [(found[f"s{n}", 0].send_time_us, found[f"s{n}", 2].last_chunk_time_us) for n in range(6)]
    assert spans[1][0] - spans[0][0] < 20_000  # the first two begin at once
    for begun, _ in spans[2:]:
        assert sum(begin < begun <= end for begin, end in spans) <= 1
    ends = sorted(end for _, end in spans)
    for begun, freed in zip(sorted(begin for begin, _ in spans[2:]), ends, strict=False):
        assert freed < begun < freed + 25_000


def test_a_conversation_that_fails_makes_room_for_the_next(observe: Observe, tmp_path: Path) -> None:
    rows = [each for number in range(4) for each in talk(f"s{number}", 2 * number, number, 1_000, rounds=2)]
    run = observe(
        trace=str(written(tmp_path, rows)), model="error500", session_mode="closed-loop", session_pool=1, timeout=5.0
    )
    assert [(each.session_id, each.round_index) for each in run.trace.rows] == [(f"s{n}", 0) for n in range(4)]


def test_several_conversations_one_after_the_other_keep_their_rounds(observe: Observe, tmp_path: Path) -> None:
    rows = [*talk("a", 0, 0, 1_000), *talk("b", 3, 200_000, 1_000)]
    run = observe(trace=str(written(tmp_path, rows)), model="ok", session_mode="closed-loop", think_time_ms=1)
    assert sorted(sent(run)) == [(name, number) for name in "ab" for number in range(3)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"session_mode": "fixed-accumulate", "rate": 1.0, "num_requests": 1}, "fixed-accumulate needs --trace"),
        ({"trace": "x.yaml", "session_pool": 3}, "--session-pool needs --session-mode closed-loop"),
        (
            {"trace": "x.yaml", "session_mode": "fixed-accumulate", "think_time_ms": 3},
            "--think-time-ms needs --session-mode closed-loop",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ObserveOptions(url="http://localhost:1", output="out", **given)
