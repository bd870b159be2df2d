"""Reads the output of a model as a server with parsers for reasoning and Hermes' function calls reads it."""

import re
from collections.abc import Iterator

from mockserve.generation.answer import Kind, Segment

START, END = "<think>", "</think>"
_CALL = re.compile(r'(<tool_call>\n\{"name": ")([^"]+)"(, "arguments": )(.*?)(\}\n</tool_call>\n?)', re.DOTALL)


def segments(text: str, has_reasoning: bool, has_calls: bool) -> list[Segment]:
    """The text by kind. Without an end of the reasoning, all of it is reasoning."""
    found: list[Segment] = []
    if has_reasoning:
        before, mark, text = text.partition(END)
        opening = START if before.startswith(START) else ""
        found += [Segment(Kind.MARKUP, opening), Segment(Kind.REASONING, before.removeprefix(START))]
        found.append(Segment(Kind.MARKUP, mark))
    found += _calls(text) if has_calls else [Segment(Kind.CONTENT, text)]
    return [each for each in found if each.text]


def _calls(text: str) -> Iterator[Segment]:
    at = 0
    for call, match in enumerate(_CALL.finditer(text)):
        yield Segment(Kind.CONTENT, text[at : match.start()])
        opening, name, between, arguments, closing = match.groups()
        yield Segment(Kind.MARKUP, opening)
        yield Segment(Kind.TOOL_NAME, f'{name}"', call, shown=name)
        yield Segment(Kind.MARKUP, between)
        yield Segment(Kind.TOOL_ARGUMENTS, arguments, call)
        yield Segment(Kind.MARKUP, closing)
        at = match.end()
    yield Segment(Kind.CONTENT, text[at:])
