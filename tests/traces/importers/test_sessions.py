"""Rows of sessions are read as their producer means them: what a turn adds, or whole prompts, and when it was sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import imported
from traces import TraceRow
from traces.importers.registry import Imported


def lines(*entries: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in entries)


def turn(tokens: int, reply: int, hashes: list[int], **more: Any) -> dict[str, Any]:
    return {"session_id": "a", "input_length": tokens, "output_length": reply, "hash_ids": hashes, **more}


TURNS = (
    turn(2000, 100, [0, 1, 2, 3], timestamp=0.0),
    turn(700, 50, [4, 5], delay=1200.5),
    turn(300, 20, [6], delay=500.0),
)


def prompts(found: Imported) -> list[tuple[int, str, int]]:
    return [(row.input_tokens, row.context_of, row.context_tokens) for row in found.rows]


def test_turns_of_mooncake_sessions_add_up(tmp_path: Path) -> None:
    found = imported("mooncake", tmp_path / "t.jsonl", lines(*TURNS))
    assert prompts(found) == [(2000, "", 0), (2800, "0", 2100), (3150, "1", 2850)]
    assert [row.think_time_us for row in found.rows] == [0, 1_200_500, 500_000]
    assert "is what its turn adds, as AIPerf reads it" in found.notes[0]


def test_whole_prompts_of_mooncake_sessions_are_read_with_a_flag(tmp_path: Path) -> None:
    whole = (TURNS[0], turn(2560, 50, [0, 1, 2, 3, 9], delay=1))
    found = imported("mooncake", tmp_path / "t.jsonl", lines(*whole), session_prompts="whole")
    assert prompts(found) == [(2000, "", 0), (2560, "0", 2048)]
    assert "is its whole prompt" in found.notes[0]
    as_turns = imported("mooncake", tmp_path / "t.jsonl", lines(*whole))
    assert "1 rows of sessions begin with the blocks of the row before: are they whole prompts" in as_turns.notes[1]


def test_first_turns_of_mooncake_sessions_share_their_blocks(tmp_path: Path) -> None:
    other = TURNS[0] | {"session_id": "b", "timestamp": 1}
    found = imported("mooncake", tmp_path / "t.jsonl", lines(*TURNS, other))
    assert {row.session_id: row.context_tokens for row in found.rows if not row.round_index} == {"a": 0, "b": 1999}
    assert "--session-prompts" not in "".join(
        imported("mooncake", tmp_path / "u.jsonl", lines({**TURNS[0], "session_id": None})).notes
    )


def test_the_pause_before_a_turn_with_a_time_and_no_delay_is_the_time_between_arrivals(tmp_path: Path) -> None:
    found = imported("mooncake", tmp_path / "t.jsonl", lines(TURNS[0], turn(9, 1, [4], timestamp=1500)))
    assert found.rows[1].think_time_us == 1_500_000


def chat(number: int, parent: int, at_s: float, tokens: int, hashes: list[int], turn: int) -> dict[str, Any]:
    known = {"chat_id": number, "parent_chat_id": parent, "timestamp": at_s, "type": "text", "turn": turn}
    return {**known, "input_length": tokens, "output_length": 5, "hash_ids": hashes}


def test_more_blocks_than_a_prompt_of_mooncake_has_are_refused(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1100, "output_length": 1}
    for count in (0, 1, 3):
        assert imported("mooncake", tmp_path / "t.jsonl", lines(row | {"hash_ids": list(range(count))})).rows
    text = lines(row | {"hash_ids": list(range(44))})
    with pytest.raises(
        BlisError, match=r"line 1 key hash_ids: expected at most 3 blocks of 512 tokens, .* got 44; --b"
    ):
        imported("mooncake", tmp_path / "t.jsonl", text)
    assert imported("mooncake", tmp_path / "t.jsonl", text, block_tokens=25).rows


def test_rows_of_mooncake_may_have_texts_and_messages_which_are_whole_prompts(tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "a" * 40},
        {"role": "assistant", "content": [{"type": "text", "text": "b" * 8}]},
    ]
    begun = {"session_id": "a", "timestamp": 0, "output_length": 2, "text_input": "a" * 40}
    whole = {"session_id": "a", "output_length": 3, "messages": [*said, {"role": "user", "content": "c" * 20}]}
    found = imported("mooncake", tmp_path / "t.jsonl", lines(begun, whole, turn(7, 1, [])))
    assert prompts(found) == [(10, "", 0), (17, "0", 12), (27, "1", 20)]
    assert "prompts of 2 rows are texts: tokens are estimated as one per 4 characters, give --tokenizer" in found.notes


def test_messages_of_mooncake_with_odd_arguments_and_nesting_end_in_one_line(tmp_path: Path) -> None:
    odd = '{"a": 123456789012345678901234567890, "b": NaN, "c": "\\ud83d"}'
    calls = f'[{{"function": {{"name": "f", "arguments": {odd}}}}}]'
    message = f'{{"role": "assistant", "content": null, "tool_calls": {calls}}}'
    text = f'{{"timestamp": 0, "output_length": 5, "messages": [{message}]}}\n'
    assert imported("mooncake", tmp_path / "t.jsonl", text).rows[0].input_tokens > 10
    content: Any = "x"
    for _ in range(300):
        content = [{"type": "tool_result", "content": content}]
    row = {"timestamp": 0, "output_length": 5, "messages": [{"role": "user", "content": content}]}
    with pytest.raises(BlisError, match="parts are within more than 20 others"):
        imported("mooncake", tmp_path / "t.jsonl", lines(row))


def test_rows_of_mooncake_without_hashes_are_counted(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 900, "output_length": 1}
    found = imported("mooncake", tmp_path / "t.jsonl", lines(row | {"hash_ids": [1, 2]}, row))
    assert found.notes == ("1 rows have no hash_ids: their prompts are taken as sharing nothing",)


BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,12.0,3.25,ChatGPT,472,18,490,Conversation log\n"
    "45,12.0,8.5,ChatGPT,1087,230,1317,Conversation log\n"
    "118,,2.0,GPT-4,417,276,693,API log\n"
    "120,12.0,1.0,ChatGPT,300,0,300,Conversation log\n"
    "130,12.0,2.5,ChatGPT,1500,30,1530,Conversation log\n"
)


def test_conversations_of_burstgpt_are_sessions_with_pauses(tmp_path: Path) -> None:
    found = imported("burstgpt", tmp_path / "t.csv", BURST)

    def about(row: TraceRow) -> tuple[str, int, int]:
        return row.session_id, row.round_index, row.think_time_us

    assert [about(row) for row in found.rows] == [
        ("12", 0, 0),
        ("12", 1, 36_750_000),
        ("", 0, 0),
        ("12", 2, 76_500_000),
    ]
    assert found.left_out["values of Elapsed time of requests without a conversation or a reply"] == 2
    assert found.left_out["requests without prompt or output tokens"] == 1


def test_rounds_of_burstgpt_follow_their_times(tmp_path: Path) -> None:
    head, first, second, *_ = BURST.splitlines(keepends=True)
    found = imported("burstgpt", tmp_path / "t.csv", head + second + first)
    assert [(row.round_index, row.think_time_us) for row in found.rows] == [(0, 0), (1, 36_750_000)]


def test_a_row_of_burstgpt_whose_total_is_no_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match="line 3: expected Total tokens 1317, the sum of the other two, got 1318"):
        imported("burstgpt", tmp_path / "t.csv", BURST.replace("1317", "1318"))
