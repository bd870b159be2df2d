"""Which calls of an answer that was cut short a whole reply shows, under each of vLLM's parsers."""

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from mockserve.generation.answer import CutCalls

Called: TypeAlias = tuple[str, str]
"""The name of a function, and its arguments as JSON or the beginning of that."""


class CutForm(Enum):
    """The result of a parser for calls that were cut short."""

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
"""Forms by the name of the parser; under the others all is text."""


ENDS_AT_NAMES = frozenset(
    {"deepseek_v3", "deepseek_v31", "hunyuan_a13b", "hy_v3", "hy_v4", "kimi_k2", "mistral", "xlam"}
)
"""Parsers whose streams bring no arguments where they are cut at a name; others bring an empty object."""


def shown_calls(form: CutForm, begun: Sequence[Called], cut: CutCalls) -> Sequence[Called] | None:
    """The calls that a whole reply shows of those that were `begun`; None if all that was said is text."""
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
    """The object that `text` begins, with the members that are complete in it."""
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
