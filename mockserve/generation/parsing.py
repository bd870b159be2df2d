"""Parses a model's text as vLLM's parsers do: reasoning, content and calls, complete, partial, or cut short."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from mockserve.generation.answer import CutCalls, Delta, Kind
from mockserve.generation.script import END, START

CALL, CALL_END = "<tool_call>", "</tool_call>"

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_BRACKETS_OR_TEXT = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"?')


def read_answer(text: str, has_reasoning: bool, has_calls: bool, is_whole: bool) -> list[Delta]:
    """Return the parts of a text in order. A longer text only adds parts; a mark of reasoning is a single token.

    All text is reasoning if the mark that ends reasoning is missing. A whole text has no calls if one of them is
    invalid JSON: then the calls are content.
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


def new_parts(before: list[Delta], after: list[Delta]) -> list[Delta]:
    """Return the parts of a longer text that are missing from a shorter one."""
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
            words = without_beginning_of(CALL, words)
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
    """Return the JSON object at the beginning of a text; the object may be incomplete."""
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


def without_beginning_of(mark: str, text: str) -> str:
    """Return `text` without an incomplete mark at its end."""
    for length in range(len(mark) - 1, 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text


NameAndArguments: TypeAlias = tuple[str, str]
"""Name of a function, and its arguments as JSON, possibly incomplete."""


class CutForm(Enum):
    """How a parser returns calls that were cut short."""

    TEXT = "all that was said is text"
    LEFT_OUT = "nothing is shown"
    TAGGED = "complete calls where no other has begun, else text"
    COMPLETE = "complete calls"
    COMPLETE_OR_TEXT = "complete calls, or text where there is none"
    MEMBERS = "begun calls with the arguments that are complete"
    RAW = "begun calls with what there is of their arguments"


CUT_FORMS: Mapping[str, CutForm] = {
    **dict.fromkeys(
        (
            *("gigachat3", "granite-20b-fc", "granite4", "hermes", "internlm"),
            *("llama3_json", "llama4_json", "longcat", "qwen3_json"),
        ),
        CutForm.TAGGED,
    ),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31", "ernie45", "kimi_k3"), CutForm.COMPLETE),
    **dict.fromkeys(("minicpm5", "muse", "muse_glimmer", "musespark1x", "poolside_v1"), CutForm.COMPLETE_OR_TEXT),
    **dict.fromkeys(
        (
            *("apertus", "deepseek_v32", "deepseek_v4", "deepseek_v41", "functiongemma", "gemma4", "glm45", "glm47"),
            *("hy_v3", "ling3", "mimo", "minimax_m2", "minimax_m3", "qwen3_coder", "qwen3_xml", "seed_oss", "step3p5"),
            "step5",
        ),
        CutForm.MEMBERS,
    ),
    **dict.fromkeys(("granite", "inkling", "kimi_k2", "mistral", "plamo3"), CutForm.RAW),
}
"""Forms by the name of the parser. All other parsers return such calls as text."""


ENDS_AT_NAMES = frozenset(
    {"deepseek_v3", "deepseek_v31", "hunyuan_a13b", "hy_v3", "hy_v4", "kimi_k2", "mistral", "xlam"}
)
"""Parsers whose streams have no arguments where they are cut at a name. Streams of other parsers have an empty
object."""


def calls_in_reply(
    form: CutForm, begun: Sequence[NameAndArguments], cut: CutCalls
) -> Sequence[NameAndArguments] | None:
    """Return the calls in a whole reply out of the `begun` ones; None if the whole text is content."""
    complete = begun[: cut.num_complete]
    if form is CutForm.TEXT or (form is CutForm.TAGGED and (cut.is_within_call or not complete)):
        return None
    if form is CutForm.COMPLETE_OR_TEXT and not complete:
        return None
    if form is CutForm.LEFT_OUT:
        return ()
    if form is CutForm.MEMBERS:
        return [(name, complete_members(arguments)) for name, arguments in begun]
    if form is CutForm.RAW:
        return [(name, arguments or "{}") for name, arguments in begun]
    return complete


def complete_members(text: str) -> str:
    """Return the object at the beginning of `text`, with only its complete members."""
    decoder = json.JSONDecoder()
    end = 0
    at = 1
    try:
        while at < len(text) and text[at] != "}":
            _, at = decoder.raw_decode(text, _after_space(text, at))
            at = _after_space(text, at)
            if text[at : at + 1] != ":":
                break
            start = _after_space(text, at + 1)
            _, at = decoder.raw_decode(text, start)
            if at == len(text) and text[at - 1] not in '"}]':
                break  # a number may go on
            end, at = at, _after_space(text, at)
            if text[at : at + 1] != ",":
                break
            at += 1
    except ValueError:
        pass
    return f"{text[:end]}}}" if end else "{}"


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
