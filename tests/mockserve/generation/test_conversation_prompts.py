"""Prompts of conversations, and what is left of them in memory."""

from typing import Any

import pytest

from mockserve.generation import jinja_template
from mockserve.generation.chat_templates import ChatRenderer
from mockserve.generation.chat_turns import ITEMS_PER_FREE, Turn, Turns, free
from mockserve.generation.jinja_template import JinjaTemplate
from mockserve.protocol.errors import ApiError

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
REFUSING = "{{ raise_exception('no') }}"


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
    """The turns that templates have been given, as they are freed."""
    made: list[NotedTurns] = []

    def noting(turns: list[Turn]) -> None:
        made.append(NotedTurns(turns))
        free(made[-1])

    monkeypatch.setattr(jinja_template, "free", noting)
    return made


def conversation(num_turns: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}] * num_turns}


def test_the_turns_of_a_long_conversation_are_freed_in_pieces(noted: list[NotedTurns]) -> None:
    num_turns = 3 * ITEMS_PER_FREE + 1
    text = ChatRenderer(template=JinjaTemplate(TEMPLATE, {})).prompt(conversation(num_turns))
    assert text.count("user") == num_turns
    assert sorted(noted[0].deleted) == [1, ITEMS_PER_FREE, ITEMS_PER_FREE, ITEMS_PER_FREE]
    assert noted[0] == []


def test_the_turns_of_a_refused_conversation_are_freed_too(noted: list[NotedTurns]) -> None:
    with pytest.raises(ApiError, match="no"):
        ChatRenderer(template=JinjaTemplate(REFUSING, {})).prompt(conversation(1))
    assert noted == [[]]


def test_a_turn_is_made_when_it_is_read_and_a_plain_message_is_its_own_turn() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"content": "a", "role": "assistant"},
        {"role": "user", "content": [{"type": "text", "text": "p"}]},
    ]
    turns = Turns(messages)
    assert turns[1] is messages[1]
    assert [list(each) for each in turns] == [["role", "content"]] * 4, "the keys of templates have one order"
    assert [each["content"] for each in turns[2:]] == ["a", "p"]
    assert Turns(messages, takes_parts=True)[1] == {"role": "user", "content": [{"type": "text", "text": "u"}]}
