"""Traces of Bailian."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import imported
from tests.traces.importers.test_sessions import chat, lines, prompts


def test_chats_of_bailian_go_on_from_their_parents(tmp_path: Path) -> None:
    chats = [
        chat(159, -1, 61.125, 40, [1, 2, 3], 1),
        chat(160, 159, 75.25, 60, [1, 2, 8, 9], 2),
        chat(161, 159, 80.0, 33, [1, 2, 7], 2),
        chat(162, 99, 81.0, 16, [4], 6),
    ]
    found = imported("bailian", tmp_path / "t.jsonl", lines(*chats))
    assert [row.arrival_time_us for row in found.rows] == [0, 14_125_000, 18_875_000, 19_875_000]
    assert [(row.session_id, row.round_index, row.parents) for row in found.rows] == [
        ("159", 0, ""),
        ("159", 1, "0"),
        ("159", 1, "0"),
        ("162", 5, ""),
    ]
    assert prompts(found) == [(40, "", 0), (60, "0", 32), (33, "0", 32), (16, "", 0)]
    assert found.left_out["parent_chat_id of requests whose parents are not in the file"] == 1


@pytest.mark.parametrize(
    ("chats", "message"),
    [
        ([chat(1, -1, 0, 700, list(range(44)), 1)], None),
        (
            [chat(1, -1, 0, 700, list(range(45)), 1)],
            "line 1 key hash_ids: expected at most 44 blocks of 16 tokens, as t",
        ),
        ([chat(1, -1, 9, 5, [], 1), chat(2, 1, 8, 5, [], 2)], "line 2 key timestamp: expected none below that of its"),
        ([chat(1, -1, 9, 5, [], 1), chat(2, 1, 10, 5, [], 5)], "line 2 key turn: expected 2, as parent_chat_id says"),
        ([chat(1, -1, 9, 5, [], 1), chat(1, -1, 9, 5, [], 1)], "line 2 key chat_id: expected a chat that no line"),
    ],
)
def test_chats_that_contradict_themselves_are_refused(
    chats: list[dict[str, Any]], message: str | None, tmp_path: Path
) -> None:
    if message is None:
        assert imported("bailian", tmp_path / "t.jsonl", lines(*chats)).rows
        return
    with pytest.raises(BlisError, match=message):
        imported("bailian", tmp_path / "t.jsonl", lines(*chats))


def test_bailian_is_not_read_as_mooncake(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match="line 1: chat_id is a key of Bailian's traces, read them with: blis convert b"):
        imported("mooncake", tmp_path / "t.jsonl", lines(chat(1, -1, 0, 16, [1], 1)))
