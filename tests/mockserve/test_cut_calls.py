"""Calls that were cut short in whole replies: the forms are those of a genuine server's replies."""

import pytest

from mockserve.generation.answer import CutCalls
from mockserve.generation.tool_calls import CutForm, calls_in_reply, complete_members

WHOLE, BEGUN = ("look", '{"at": "x y", "far": 3}'), ("wait", '{"s": 0.5, "wh')
WITHIN, BETWEEN, AT_FIRST = CutCalls("...", 1, True), CutCalls("...", 1, False), CutCalls("...", 0, True)


@pytest.mark.parametrize(
    ("form", "within", "between", "at_first"),
    [
        (CutForm.TEXT, None, None, None),
        (CutForm.LEFT_OUT, [], [], []),
        (CutForm.TAGGED, None, [WHOLE], None),
        (CutForm.COMPLETE, [WHOLE], [WHOLE], []),
        (CutForm.COMPLETE_OR_TEXT, [WHOLE], [WHOLE], None),
        (CutForm.MEMBERS, [WHOLE, ("wait", '{"s": 0.5}')], [WHOLE], [("look", "{}")]),
        (CutForm.RAW, [WHOLE, BEGUN], [WHOLE], [("look", "{}")]),
    ],
)
def test_a_parser_shows_its_own_part_of_calls_that_were_cut(
    form: CutForm, within: list[object] | None, between: list[object] | None, at_first: list[object] | None
) -> None:
    shown = [
        calls_in_reply(form, [WHOLE, BEGUN], WITHIN),
        calls_in_reply(form, [WHOLE], BETWEEN),
        calls_in_reply(form, [("look", "")], AT_FIRST),
    ]
    assert [None if each is None else list(each) for each in shown] == [within, between, at_first]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", "{}"),
        ("{", "{}"),
        ('{"a', "{}"),
        ('{"a": "x', "{}"),
        ('{"a": "x"', '{"a": "x"}'),
        ('{"a": 12', "{}"),
        ('{"a": 12,', '{"a": 12}'),
        ('{"a": 12, "b": [1, {"c": "}"}', '{"a": 12}'),
        ('{"a": 12, "b": [1, {"c": "}"}]', '{"a": 12, "b": [1, {"c": "}"}]}'),
        ('{"a" : {} , "b": tr', '{"a" : {}}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_the_members_that_are_complete_make_an_object(text: str, complete: str) -> None:
    assert complete_members(text) == complete
