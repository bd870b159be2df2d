"""The text of a model, read by kind: complete, or as far as it has come."""

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import Delta, Kind
from mockserve.generation.tool_calls import call_script, new_parts, read_answer, read_tool_use

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "object"}}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "hear")]
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": "}"}}\n</tool_call>'
SAID = f"<think>hm</think>Sure. {CALL}\n{CALL}"


def written(seed: int) -> tuple[str, list[Delta]]:
    """An answer with calls as one is made up here, and what a client is to read of it."""
    use = read_tool_use({"tools": TOOLS}, 1.0, 0.5)
    assert use is not None
    random = Random(seed)
    script = call_script(use, random.choices(use.functions, k=2), random, verbosity=1)
    shown = [Delta(each.kind, each.shown or each.text, each.call) for each in script if each.kind is not Kind.MARKUP]
    return "".join(each.text for each in script), shown


@given(st.integers(0, 10_000))
def test_calls_are_read_as_they_were_written(seed: int) -> None:
    text, shown = written(seed)
    assert read_answer(text, has_reasoning=False, has_calls=True, is_whole=True) == shown


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_deltas_add_up_to_the_whole(seed: int, size: int) -> None:
    text = "<think>so it is</think>Well then, " + written(seed)[0]
    reported: list[Delta] = []
    before: list[Delta] = []
    mark_at = text.index("</think>")
    for end in range(len("<think>"), len(text) + size, size):
        if mark_at < end < mark_at + len("</think>"):
            continue  # a mark is one token
        after = read_answer(text[:end], has_reasoning=True, has_calls=True, is_whole=False)
        reported += new_parts(before, after)
        before = after
    whole = read_answer(text, has_reasoning=True, has_calls=True, is_whole=True)
    assert text_by_place(reported) == text_by_place(whole)


def text_by_place(deltas: list[Delta]) -> dict[tuple[Kind, int | None], str]:
    """The text of each part of an answer: its reasoning, its content, and the names and arguments of its calls."""
    texts: defaultdict[tuple[Kind, int | None], str] = defaultdict(str)
    for each in deltas:
        texts[each.kind, each.call] += each.text
    return dict(texts)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (SAID, ["reasoning", "content", "tool_name", "tool_arguments", "tool_name", "tool_arguments"]),
        ("no end of it", ["reasoning"]),
        (f"</think>{CALL[:40]}", ["content"]),
        ("</think>", []),
    ],
)
def test_a_whole_text_has_only_complete_calls(text: str, kinds: list[str]) -> None:
    assert [each.kind.value for each in read_answer(text, True, True, is_whole=True)] == kinds


def test_an_incomplete_call_has_its_parsed_part() -> None:
    cut = CALL.index('{"a"') + 4
    found = read_answer(f"Sure. {CALL[:cut]}", False, True, is_whole=False)
    assert [(each.kind.value, each.text) for each in found] == [
        ("content", "Sure. "),
        ("tool_name", "look"),
        ("tool_arguments", '{"a"'),
    ]
    assert read_answer("Sure. <tool_", False, True, is_whole=False) == [Delta(Kind.CONTENT, "Sure. ")]
