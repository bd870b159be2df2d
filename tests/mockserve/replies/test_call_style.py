"""Function calls as clients see them under each of vLLM's parsers."""

import re

import pytest

from mockserve.content.answer import Delta, Kind
from mockserve.options.parser_names import TOOL_CALL_PARSERS
from mockserve.replies.arranging import arranged
from mockserve.replies.call_style import STYLES, Arrival, CallStyle, call_id, call_style

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


def test_a_name_comes_alone_with_the_beginning_or_with_all_of_its_arguments() -> None:
    assert arranged(SAID, CallStyle(arrival=Arrival.ALONE), is_cut=False) == SAID
    assert arranged(SAID, CallStyle(arrival=Arrival.WITH_ARGUMENTS), is_cut=False) == [
        (WORD,),
        (),
        (),
        (),
        (NAME, FIRST),
        (REST,),
        (),
    ]
    assert arranged(SAID, CallStyle(arrival=Arrival.WHOLE), is_cut=False) == [
        (WORD,),
        (),
        (),
        (),
        (),
        (NAME, FIRST, REST),
        (),
    ]


def test_a_call_that_is_cut_short_is_not_told_where_calls_come_whole() -> None:
    second = [(Delta(each.kind, each.text, 1),) for each in (NAME, FIRST)]
    told = arranged([*SAID, *second], CallStyle(arrival=Arrival.WHOLE), is_cut=True)
    assert [each for found in told for each in found] == [WORD, NAME, FIRST, REST]
    assert arranged([(NAME,)], CallStyle(arrival=Arrival.WITH_ARGUMENTS), is_cut=True) == [()]
