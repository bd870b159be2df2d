"""Parses a model's text as a server with parsers does: reasoning, words and calls, complete or in part."""

import json
import re
from collections.abc import Iterator

from mockserve.generation.answer import Delta, Kind
from mockserve.generation.script import END, START

CALL, CALL_END = "<tool_call>", "</tool_call>"

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_BRACKETS_OR_TEXT = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"?')


def read_answer(text: str, has_reasoning: bool, has_calls: bool, is_whole: bool) -> list[Delta]:
    """Return the parts of a text in order. More text only adds to them; marks of reasoning, single tokens, come whole.

    Without the mark that ends it all is reasoning. A whole text with a call that is no JSON has no calls but words.
    """
    found: list[Delta] = []
    if has_reasoning:
        thought, mark, text = text.partition(END)
        thought = thought.removeprefix(START)
        if thought:
            found.append(Delta(Kind.REASONING, thought))
        if not mark:
            return found
    if not has_calls or (is_whole and not _has_whole_calls(text)):
        return [*found, Delta(Kind.CONTENT, text)] if text else found
    return [*found, *_words_and_calls(text)]


def added(before: list[Delta], after: list[Delta]) -> list[Delta]:
    """Return the parts of a longer text that a shorter one lacks."""
    new = after[len(before) :]
    if before and len(after[len(before) - 1].text) > len(before[-1].text):
        last = after[len(before) - 1]
        new = [Delta(last.kind, last.text[len(before[-1].text) :], last.call), *new]
    return new


def _words_and_calls(text: str) -> Iterator[Delta]:
    call = 0
    while text:
        words, mark, text = text.partition(CALL)
        if not mark:
            words = _without_beginning_of(CALL, words)
        if words and (call == 0 or words.strip()):
            yield Delta(Kind.CONTENT, words)
        if mark:
            inside, _, text = text.partition(CALL_END)
            yield from _call(inside, call)
            call += 1


def _call(inside: str, call: int) -> Iterator[Delta]:
    name = _NAME.match(inside)
    if name is None:
        return
    yield Delta(Kind.TOOL_NAME, str(json.loads(name[1])), call)
    rest = inside[name.end() :]
    opening = _ARGUMENTS.match(rest)
    arguments = "" if opening is None else _first_value(rest[opening.end() :])
    if arguments:
        yield Delta(Kind.TOOL_ARGUMENTS, arguments, call)


def _first_value(text: str) -> str:
    """The JSON object that a text begins with, as far as it goes."""
    depth = 0
    for match in _BRACKETS_OR_TEXT.finditer(text):
        if match[0] in "{[":
            depth += 1
        elif match[0] in "}]":
            depth -= 1
            if depth <= 0:
                return text[: match.end() if depth == 0 else match.start()]
    return text


def _has_whole_calls(text: str) -> bool:
    """Whether each call of a text is complete."""
    for part in text.split(CALL)[1:]:
        try:
            json.loads(part.partition(CALL_END)[0])
        except ValueError:
            return False
    return True


def _without_beginning_of(mark: str, text: str) -> str:
    """`text` without the beginning of a mark at its end, which may go on."""
    for length in range(len(mark) - 1, 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text
