"""Rows that repeat the round before them find it in the KV cache, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.core import Engine
from replay.arrivals import ConversationBlocks, arrivals_of
from replay.simulation.simulate import simulate
from tests.fakes import TestLatency, config
from tests.replay.small_traces import row, trace
from traces import TraceRow

LATER_US = 1_000_000


def said(round_index: int, context_tokens: int, tokens: int, session: str = "s", **columns: Any) -> TraceRow:
    """A round of a conversation with a reply of 8 tokens; blocks have 4 tokens."""
    given = {"arrival_time_us": round_index * LATER_US, "output_tokens": 8, "server_input_tokens": tokens, **columns}
    return row(
        given.pop("request_id", round_index),
        session_id=session,
        round_index=round_index,
        context_tokens=context_tokens,
        **given,
    )


def hit_blocks(folder: Path, *rows: TraceRow, engine: str = "vllm") -> int:
    limits = config(block_size_tokens=4, total_kv_blocks=200, engine=engine)
    simulated = Engine(limits, TestLatency(step_us=1_000), reports_steps=False)
    simulate(simulated, arrivals_of(trace(folder, rows, "real"), "m", limits).arrivals)
    assert simulated.kv.hit_tokens % 4 == 0
    return simulated.kv.hit_tokens // 4


@pytest.mark.parametrize("scheduling", ["vllm", "blis"])
def test_a_round_finds_the_prompt_and_the_reply_before_it_but_for_the_last_token(
    scheduling: str, tmp_path: Path
) -> None:
    """16 + 8 tokens less one fill 5 blocks, 29 + 8 less one 9."""
    rows = [said(0, 0, 16), said(1, 24, 29), said(2, 37, 42)]
    assert hit_blocks(tmp_path, *rows, engine=scheduling) == 5 + 9


def test_rounds_without_context_tokens_find_nothing(tmp_path: Path) -> None:
    assert hit_blocks(tmp_path, said(0, 0, 16), said(1, 0, 29)) == 0


def test_a_prompt_that_leaves_the_reply_out_finds_the_prompt_before_it_alone(tmp_path: Path) -> None:
    assert hit_blocks(tmp_path, said(0, 0, 16), said(1, 16, 40), said(2, 40, 60)) == 4 + 10


def test_a_round_whose_predecessor_is_missing_finds_nothing_but_is_found(tmp_path: Path) -> None:
    assert hit_blocks(tmp_path, said(1, 24, 29), said(2, 37, 42)) == 9
    assert hit_blocks(tmp_path, said(0, 0, 16), said(2, 37, 42)) == 0


def test_rows_of_a_round_that_failed_are_not_found(tmp_path: Path) -> None:
    assert hit_blocks(tmp_path, said(0, 0, 16, status="error"), said(1, 24, 29)) == 0


def test_conversations_find_each_other_only_in_the_prefix_of_their_group(tmp_path: Path) -> None:
    """9 tokens of a prefix fill 2 blocks."""
    group: dict[str, Any] = {"prefix_group": "g", "prefix_length": 9}
    rows = [said(0, 0, 16, name, request_id=10 * number, **group) for number, name in enumerate("ab")]
    later = [said(1, 24, 29, name, request_id=20 + number, **group) for number, name in enumerate("ab")]
    assert hit_blocks(tmp_path, *rows, *later) == 2 + 5 + 5


def test_prompts_are_as_long_as_the_server_counted_even_behind_a_prefix(tmp_path: Path) -> None:
    group: dict[str, Any] = {"prefix_group": "g", "prefix_length": 9, "input_tokens": 3}
    rows = [said(0, 0, 16, **group), said(1, 24, 29, **group), said(0, 0, 16, "alone", request_id=9, **group)]
    limits = config(block_size_tokens=4)
    found = arrivals_of(trace(tmp_path, rows, "real"), "m", limits).arrivals
    assert {each.request.id: each.request.input_tokens for each in found} == {
        "request_0": 16,
        "request_1": 29,
        "request_9": 12,
    }


def test_requests_find_what_they_repeat_of_those_they_name(tmp_path: Path) -> None:
    """A helper finds the 16 + 8 - 1 tokens that its parent computed, 5 blocks; the other one all 6 of the first.

    Their join finds 4 blocks of the prompt.
    """
    rows = [
        row(9, 0, server_input_tokens=16, output_tokens=8),
        row(2, LATER_US, parents="9", context_tokens=24, server_input_tokens=40),
        row(1, LATER_US, parents="9", context_tokens=24, server_input_tokens=36),
        row(4, 2 * LATER_US, parents="1 2", context_of="9", context_tokens=16, server_input_tokens=50),
    ]
    assert hit_blocks(tmp_path, *rows) == 5 + 6 + 4


def test_a_request_without_parents_finds_what_it_repeats_of_another_one(tmp_path: Path) -> None:
    rows = [
        row(0, 0, server_input_tokens=40),
        row(1, LATER_US, context_of="0", context_tokens=32, server_input_tokens=60),
        row(2, 2 * LATER_US, context_of="1", context_tokens=48, server_input_tokens=70),
        row(3, 3 * LATER_US, context_of="2", context_tokens=20, server_input_tokens=30),
    ]
    assert hit_blocks(tmp_path, *rows) == 8 + 12 + 5


def test_the_blocks_of_many_rounds_are_those_of_the_round_that_said_them_first() -> None:
    first = ConversationBlocks("a", 5)
    second = ConversationBlocks("b", 9, *first.first(5))
    third = ConversationBlocks("c", 12, *second.first(9))
    branch = ConversationBlocks("d", 12, *second.first(3))
    owners = [third.identity(index)[0] for index in range(12)]  # type: ignore[index]
    assert owners == ["a"] * 5 + ["b"] * 4 + ["c"] * 3
    assert [branch.identity(index)[0] for index in range(5)] == ["a"] * 3 + ["d"] * 2  # type: ignore[index]
    assert second.first(5) == (("a",), (5,))
