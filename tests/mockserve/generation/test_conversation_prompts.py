"""Prompts of conversations, and what is left of them in memory."""

from typing import Any

import pytest

from mockserve.generation.chat_templates import conversations
from mockserve.generation.chat_templates.conversations import ChatRenderer
from mockserve.generation.chat_templates.turns import TURNS_PER_FREE, Turn, turns_of
from mockserve.protocol.errors import ApiError


class NotedTurns(list[Turn]):
    """A list that notes how many items each deletion takes."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__(turns)
        self.deleted: list[int] = []

    def __delitem__(self, key: Any) -> None:
        before = len(self)
        super().__delitem__(key)
        self.deleted.append(before - len(self))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[NotedTurns]:
    """The turns of the prompts that are made."""
    made: list[NotedTurns] = []

    def noting(*arguments: Any) -> NotedTurns:
        made.append(NotedTurns(turns_of(*arguments)))
        return made[-1]

    monkeypatch.setattr(conversations, "turns_of", noting)
    return made


def test_the_turns_of_a_long_conversation_are_freed_in_pieces(noted: list[NotedTurns]) -> None:
    num_turns = 3 * TURNS_PER_FREE + 1
    text = ChatRenderer().prompt({"messages": [{"role": "user", "content": "a"}] * num_turns})
    assert text.count("user") == num_turns
    assert sorted(noted[0].deleted) == [1, TURNS_PER_FREE, TURNS_PER_FREE, TURNS_PER_FREE]
    assert noted[0] == []


def test_the_turns_of_a_refused_conversation_are_freed_too(noted: list[NotedTurns]) -> None:
    with pytest.raises(ApiError, match="no"):
        ChatRenderer(template=_Refusing()).prompt({"messages": [{"role": "user", "content": "a"}]})
    assert noted == [[]]


class _Refusing:
    """A template that refuses every conversation."""

    takes_parts = False

    def render(self, *_: Any) -> str:
        raise ApiError("no")
