"""Function calls as clients see them under each of vLLM's parsers."""

import re

import pytest

from mockserve.generation.answer import Delta, Kind
from mockserve.options.parsers import FORCED_AS_JSON, TOOL_CALL_PARSERS
from mockserve.reply.call_style import (
    STYLES,
    CallStyle,
    Filler,
    Fillers,
    LaterPart,
    NameDelivery,
    NoArguments,
    arrange_deltas,
    call_id,
    call_style,
    filling,
    with_reasoning_marks,
    without_fillings,
)

NAME = Delta(Kind.TOOL_NAME, "look")
FIRST, REST = Delta(Kind.TOOL_ARGUMENTS, "{"), Delta(Kind.TOOL_ARGUMENTS, "}")
WORD = Delta(Kind.CONTENT, "Sure")
SAID = [(WORD,), (), (NAME,), (), (FIRST,), (REST,), ()]


def test_styles_are_those_of_parsers_that_exist() -> None:
    assert set(STYLES) <= set(TOOL_CALL_PARSERS)


@pytest.mark.parametrize(
    ("parser", "whole", "streamed"),
    [
        ("hermes", r"chatcmpl-tool-[0-9a-f]{16}", r"chatcmpl-tool-[0-9a-f]{16}"),
        ("mistral", r"[0-9A-Za-z]{9}", r"[0-9A-Za-z]{9}"),
        ("kimi_k2", r"functions\.look:3", r"functions\.look:3"),
        ("cohere_command3", r"3", r"3"),
        ("cohere_command4", r"3", r"3"),
        ("xlam", r"call_1_[0-9a-f]{16}", r"call_1_[0-9a-f]{16}"),
        ("hunyuan_a13b", r"call_[0-9a-f]{16}", r"call_1_[0-9a-f]{16}"),
        ("minicpm5", r"call_[0-9a-f]{16}", r"chatcmpl-tool-[0-9a-f]{16}"),
        ("qwen3_coder", r"chatcmpl-tool-[0-9a-f]{16}", r"chatcmpl-tool-[0-9a-f]{16}"),
        (None, r"chatcmpl-tool-[0-9a-f]{16}", r"chatcmpl-tool-[0-9a-f]{16}"),
    ],
)
def test_ids_have_the_form_of_the_parser(parser: str | None, whole: str, streamed: str) -> None:
    form = call_style(parser).ids
    for is_stream, pattern in ((False, whole), (True, streamed)):
        found = call_id(form, "look", call=1, num_earlier=2, is_stream=is_stream)
        assert re.fullmatch(pattern, found), found


@pytest.mark.parametrize(
    ("arrival", "reported"),
    [
        (NameDelivery.ALONE, SAID),
        (NameDelivery.WITH_ARGUMENTS, [(WORD,), (), (), (), (NAME, FIRST), (REST,), ()]),
        (NameDelivery.WHOLE, [(WORD,), (), (), (), (), (NAME, FIRST, REST), ()]),
        (NameDelivery.TOGETHER, [(WORD,), (), (), (), (), (NAME, FIRST, REST), ()]),
    ],
)
def test_a_name_comes_alone_with_the_beginning_or_with_all_of_its_arguments(
    arrival: NameDelivery, reported: object
) -> None:
    assert arrange_deltas(SAID, CallStyle(arrival=arrival), is_cut=False) == reported


def test_a_cut_call_has_no_events_where_calls_come_whole() -> None:
    second = [(Delta(each.kind, each.text, 1),) for each in (NAME, FIRST)]
    reported = arrange_deltas([*SAID, *second], CallStyle(arrival=NameDelivery.WHOLE), is_cut=True)
    assert [each for found in reported for each in found] == [WORD, NAME, FIRST, REST]
    assert arrange_deltas([(NAME,)], CallStyle(arrival=NameDelivery.WITH_ARGUMENTS), is_cut=True) == [()]


def test_calls_come_together_when_the_last_is_complete() -> None:
    second = [(Delta(each.kind, each.text, 1),) for each in (NAME, FIRST, REST)]
    reported = arrange_deltas([*SAID, *second], CallStyle(arrival=NameDelivery.TOGETHER), is_cut=False)
    assert [len(each) for each in reported] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 6]


def test_tokens_without_deltas_get_empty_events() -> None:
    empty, null = Delta(Kind.CONTENT, ""), Delta(Kind.NOTHING, "")
    said = [(), (), (NAME,), (FIRST,), (), (), ()]
    fillers = Fillers(opening=Filler.EMPTY, closing=Filler.NULL, after_calls=Filler.EMPTY)
    assert arrange_deltas(said, CallStyle(fillers=fillers), is_cut=False) == [
        (empty,), (), (NAME,), (FIRST,), (null,), (), (empty,)
    ]  # fmt: skip


def test_the_empty_event_after_content_requires_content() -> None:
    style = CallStyle(fillers=Fillers(after_words=Filler.EMPTY))
    assert arrange_deltas([(WORD,), ()], style, is_cut=False) == [(WORD,), (Delta(Kind.CONTENT, ""),)]
    thought = Delta(Kind.REASONING, "hm")
    assert arrange_deltas([(thought,), ()], style, is_cut=False) == [(thought,), ()]


def test_holds_the_end_of_the_arguments_back() -> None:
    reported = arrange_deltas(SAID, CallStyle(arrival=NameDelivery.WITH_ARGUMENTS, delays_end=True), is_cut=False)
    assert reported[4:] == [(NAME, FIRST), (), (REST,)]


def test_a_call_without_arguments_is_joined_or_brings_its_name_alone() -> None:
    said = [(NAME,), (Delta(Kind.TOOL_ARGUMENTS, "{}"),), ()]
    joined = arrange_deltas(said, CallStyle(no_arguments=NoArguments.JOINED), is_cut=False)
    assert joined == [(), (NAME, Delta(Kind.TOOL_ARGUMENTS, "{}")), ()]
    assert arrange_deltas(said, CallStyle(no_arguments=NoArguments.SKIPPED), is_cut=False) == [(NAME,), (), ()]


def test_calls_of_deepseek_v3_have_a_line_break_between_them_in_streams() -> None:
    second = Delta(Kind.TOOL_NAME, "look", 1)
    reported = arrange_deltas([(NAME,), (FIRST, REST), (), (), (second,), ()], call_style("deepseek_v3"), is_cut=False)
    assert reported[2:5] == [(Delta(Kind.CONTENT, "\n"),), (), (second,)]
    assert call_style("deepseek_v31").fillers.between is Filler.NOTHING


@pytest.mark.parametrize(
    ("choice", "part"),
    [("auto", LaterPart.NULL_ID), ("required", LaterPart.NULL_NAME), ({"function": {}}, LaterPart.BARE)],
)
def test_calls_that_are_forced_are_json_for_parsers_that_do_not_see_them(choice: object, part: LaterPart) -> None:
    assert call_style("pythonic", choice).part is part
    assert call_style("hermes", choice) == call_style("hermes")


THOUGHT, EMPTY = Delta(Kind.REASONING, "hm"), Delta(Kind.CONTENT, "")


def test_marks_of_reasoning_have_the_events_of_the_style() -> None:
    begin, end = (Delta(Kind.REASONING, ""),), (EMPTY,)
    assert with_reasoning_marks([(), (THOUGHT,), (), (WORD,), ()], begin, end) == [begin, (THOUGHT,), end, (WORD,), ()]
    assert with_reasoning_marks([(THOUGHT,), (WORD,), ()], begin, end) == [(THOUGHT,), (WORD,), ()]
    assert with_reasoning_marks([(), (THOUGHT,), ()], begin, end) == [begin, (THOUGHT,), ()]


def test_hidden_reasoning_leaves_no_empty_event() -> None:
    reported = [filling(Filler.NULL), (WORD,), filling(Filler.EMPTY), (NAME,), filling(Filler.CALL)]
    assert without_fillings(reported) == [(), (WORD,), (), (NAME,), filling(Filler.CALL)]


@pytest.mark.parametrize(
    ("parser", "filler"),
    [("hermes", Filler.NOTHING), ("deepseek_v3", Filler.EMPTY), ("pythonic", Filler.EMPTY), ("ernie45", Filler.NULL)],
)
def test_parser_of_calls_may_answer_the_end_of_reasoning(parser: str, filler: Filler) -> None:
    assert call_style(parser).after_reasoning is filler


NAMED = {"type": "function", "function": {"name": "f"}}


def test_the_name_of_a_named_function_comes_without_arguments_at_the_end_of_reasoning() -> None:
    for parser in sorted(FORCED_AS_JSON):
        style = call_style(parser, NAMED, reasons=True)
        assert (style.arrival, style.names_have_arguments) == (NameDelivery.ALONE, True)
        assert call_style(parser, NAMED).arrival is NameDelivery.WITH_ARGUMENTS
    assert call_style("hermes", NAMED, reasons=True) == call_style("hermes", NAMED)


def test_a_forced_call_of_hy_v4_follows_reasoning_at_once() -> None:
    assert call_style("hy_v4").after_reasoning is Filler.EMPTY
    for choice in ("required", NAMED):
        assert call_style("hy_v4", choice).after_reasoning is Filler.NOTHING


def arguments(*texts: str, call: int = 0) -> list[tuple[Delta, ...]]:
    """The deltas of tokens that are parts of the arguments of a call."""
    return [(Delta(Kind.TOOL_ARGUMENTS, text, call),) if text else () for text in texts]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (['{"n":', " ", "50", "}"], ['{"n":', "", " 50", "}"]),
        (['{"q":', ' "a', " ", " ", 'b"', "}"], ['{"q":', ' "a', "", "", '  b"', "}"]),
        (['{"q": "a ', "<", ' b"', "}"], ['{"q": "a', "", ' < b"', "}"]),
        (['{"q": "', "</tool", 's"}'], ['{"q": "', "", '</tools"}']),
        (["{\n ", ' "n": 1\n', "}"], ["{", '\n  "n": 1', "\n}"]),
    ],
)
def test_hermes_holds_back_what_may_be_the_space_before_its_mark(said: list[str], sent: list[str]) -> None:
    name = [(NAME,)]
    assert arrange_deltas([*name, *arguments(*said)], call_style("hermes"), is_cut=False) == name + arguments(*sent)


def test_what_is_held_back_at_the_end_of_a_cut_call_never_comes() -> None:
    said = [(NAME,), *arguments('{"n":', " ")]
    assert arrange_deltas(said, call_style("hermes"), is_cut=True) == [(NAME,), *arguments('{"n":', "")]


def test_another_parser_sends_space_as_it_comes() -> None:
    said = [(NAME,), *arguments('{"n":', " ", "50}")]
    assert arrange_deltas(said, call_style("qwen3_coder"), is_cut=False) == said


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (["a", " <", " b"], ["a", " ", "< b"]),
        (["<tool", "box>"], ["", "<toolbox>"]),
        (["so ", "<", "tool"], ["so ", "", ""]),
    ],
)
def test_hermes_holds_back_content_that_may_begin_a_call(said: list[str], sent: list[str]) -> None:
    def content(texts: list[str]) -> list[tuple[Delta, ...]]:
        return [(Delta(Kind.CONTENT, text),) if text else () for text in texts]

    assert arrange_deltas(content(said), call_style("hermes"), is_cut=False) == content(sent)
    assert call_style("hermes").may_hold(said)
    assert arrange_deltas(content(said), call_style("qwen3_coder"), is_cut=False) == content(said)
    assert not call_style("qwen3_coder").may_hold(said)
