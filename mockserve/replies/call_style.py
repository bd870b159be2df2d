"""How tool calls and reasoning look in streams under each of vLLM's parsers."""

import random
import string
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from mockserve.content.answer import Delta, Kind
from mockserve.protocol.completions.bodies import TOOL_CALL_PREFIX
from mockserve.replies.identity import new_id

MISTRAL_ID_CHARS = 9
_ALPHANUMERIC = string.ascii_letters + string.digits


class IdForm(Enum):
    """What an id of a call is made of."""

    RANDOM = "random"
    MISTRAL = "nine letters and digits"
    KIMI = "the function, and how many calls the conversation had before"
    NUMBERED = "its place among the calls of the answer"
    SHORT = "random, numbered in streams"
    SHORT_WHOLE = "random, without vLLM's prefix in whole replies"


class Arrival(Enum):
    """What comes with the name of a function in a stream."""

    ALONE = "nothing"
    WITH_ARGUMENTS = "the beginning of its arguments"
    WHOLE = "all of its arguments"
    TOGETHER = "all calls with all of their arguments"


class NoArguments(Enum):
    """What a stream does with a call that has no arguments."""

    USUAL = "what it does with others"
    JOINED = "brings the empty object with the name"
    SKIPPED = "brings the name alone"


class NullContent(Enum):
    """Which parts of a call have a null content beside them."""

    NEVER = "none"
    ALWAYS = "all"
    NAME = "the first"


class Filler(Enum):
    """What an event of a stream has where there is nothing to say."""

    NOTHING = "no event, or an empty delta at the end"
    NULL = "a null content"
    EMPTY = "an empty content"
    CALL = "an empty part of the arguments of the latest call"


class Part(Enum):
    """What later parts of a call have beside their text."""

    BARE = "nothing"
    NULL_NAME = "a null name"
    NULL_ID = "a null id"


class Fillers(NamedTuple):
    """Events without anything to say: before the first call, for all tokens that mark calls, between two calls, after
    the last one, and at the end of calls and of words.

    `closes_one`: whether `closing` comes after a call that is the only one, too.
    """

    opening: Filler = Filler.NOTHING
    within: Filler = Filler.NOTHING
    between: Filler = Filler.NOTHING
    closing: Filler = Filler.NOTHING
    after_calls: Filler = Filler.NOTHING
    after_words: Filler = Filler.NOTHING
    closes_one: bool = True


class CallStyle(NamedTuple):
    """The looks of calls. `names_have_arguments`: the part with the name has arguments, even if they are empty.

    `holds_end`: the last part of the arguments comes with the end of the answer. `after_reasoning`: what the mark at
    the end of reasoning brings.
    """

    ids: IdForm = IdForm.RANDOM
    arrival: Arrival = Arrival.ALONE
    null_content: NullContent = NullContent.NEVER
    part: Part = Part.BARE
    no_arguments: NoArguments = NoArguments.USUAL
    fillers: Fillers = Fillers()
    names_have_arguments: bool = False
    holds_end: bool = False
    after_reasoning: Filler = Filler.NOTHING


CALL_KINDS = (Kind.TOOL_NAME, Kind.TOOL_ARGUMENTS)
PLAIN = CallStyle()
_WORDS_END_EMPTY = Fillers(after_words=Filler.EMPTY)
_NULL_CONTENT = CallStyle(null_content=NullContent.ALWAYS)
_DEEPSEEK = CallStyle(
    fillers=Fillers(opening=Filler.EMPTY, closing=Filler.EMPTY, after_calls=Filler.EMPTY, after_words=Filler.EMPTY)
)
_LLAMA = CallStyle(
    no_arguments=NoArguments.SKIPPED,
    fillers=Fillers(between=Filler.CALL, after_calls=Filler.CALL, after_words=Filler.EMPTY),
)
_PYTHON_END = Fillers(closing=Filler.EMPTY, after_calls=Filler.EMPTY, after_words=Filler.EMPTY)
_PYTHON = CallStyle(arrival=Arrival.WITH_ARGUMENTS, part=Part.NULL_ID, fillers=_PYTHON_END)
_PYTHON_LIST = _PYTHON._replace(fillers=_PYTHON_END._replace(closes_one=False))
_NULL_TOGETHER = CallStyle(arrival=Arrival.TOGETHER, null_content=NullContent.ALWAYS)
_NULL_WHOLE = CallStyle(arrival=Arrival.WHOLE, null_content=NullContent.ALWAYS)
_JOINS_NOTHING = CallStyle(no_arguments=NoArguments.JOINED)
_STYLES: Mapping[str, CallStyle] = {
    **dict.fromkeys(("apertus", "hermes", "longcat", "qwen3_json"), _NULL_CONTENT),
    **dict.fromkeys(("deepseek_v3", "deepseek_v31"), _DEEPSEEK),
    **dict.fromkeys(("dots", "k2_horizon"), _NULL_TOGETHER),
    **dict.fromkeys(("glm45", "glm47", "ling3", "mimo", "minimax_m3"), _JOINS_NOTHING),
    **dict.fromkeys(("granite-20b-fc", "llama3_json", "llama4_json"), _LLAMA),
    **dict.fromkeys(("granite4", "kimi_k3"), _NULL_WHOLE),
    **dict.fromkeys(("internlm", "jamba"), CallStyle(fillers=_WORDS_END_EMPTY)),
    **dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), CallStyle(arrival=Arrival.WHOLE)),
    **dict.fromkeys(("olmo3", "pythonic"), _PYTHON_LIST),
    "ernie45": _NULL_WHOLE._replace(
        fillers=Fillers(within=Filler.NULL, after_calls=Filler.NULL, after_words=Filler.NULL)
    ),
    "functiongemma": CallStyle(no_arguments=NoArguments.SKIPPED),
    "hunyuan_a13b": CallStyle(IdForm.SHORT, fillers=_WORDS_END_EMPTY),
    "hy_v3": CallStyle(null_content=NullContent.NAME, fillers=_WORDS_END_EMPTY),
    "hy_v4": CallStyle(no_arguments=NoArguments.JOINED, fillers=_WORDS_END_EMPTY),
    "kimi_k2": CallStyle(IdForm.KIMI, Arrival.WITH_ARGUMENTS),
    "lfm2": _PYTHON._replace(null_content=NullContent.ALWAYS),
    "llama4_pythonic": _PYTHON,
    "minicpm5": CallStyle(IdForm.SHORT_WHOLE, Arrival.WHOLE, fillers=Fillers(after_calls=Filler.EMPTY)),
    "mistral": CallStyle(IdForm.MISTRAL, Arrival.WITH_ARGUMENTS, holds_end=True),
    "openai": CallStyle(arrival=Arrival.WITH_ARGUMENTS),
    "plamo3": CallStyle(arrival=Arrival.WITH_ARGUMENTS),
    "poolside_v1": _NULL_CONTENT._replace(names_have_arguments=True),
    "xlam": CallStyle(IdForm.NUMBERED, fillers=_WORDS_END_EMPTY),
}
_EMPTY_AFTER_REASONING = (
    *("deepseek_v3", "deepseek_v31", "hunyuan_a13b", "hy_v3", "hy_v4", "internlm", "jamba", "lfm2", "llama3_json"),
    *("llama4_json", "llama4_pythonic", "olmo3", "pythonic", "xlam"),
)
"""Parsers that bring an empty content for the mark at the end of reasoning."""
STYLES: Mapping[str, CallStyle] = {
    **_STYLES,
    **{name: _STYLES[name]._replace(after_reasoning=Filler.EMPTY) for name in _EMPTY_AFTER_REASONING},
    "ernie45": _STYLES["ernie45"]._replace(after_reasoning=Filler.NULL),
}
"""By the name of the parser; the others are plain."""

_FORCED = CallStyle(arrival=Arrival.WITH_ARGUMENTS, part=Part.NULL_NAME)
_NAMED = CallStyle(arrival=Arrival.WITH_ARGUMENTS, fillers=Fillers(after_calls=Filler.CALL))
FORCED_AS_JSON = frozenset(
    {
        *("apertus", "ernie45", "functiongemma", "gigachat3", "granite", "granite-20b-fc", "granite4", "hunyuan_a13b"),
        *("hy_v3", "internlm", "jamba", "lfm2", "llama4_pythonic", "minicpm5", "olmo3", "phi4_mini_json", "pythonic"),
        *("seed_oss", "step3", "xlam"),
    }
)
"""Parsers that do not see calls that are forced: those are JSON, which vLLM reads the same way for all of them."""


def call_style(parser: str | None, choice: object = "auto") -> CallStyle:
    """The style of the calls that a parser finds under a choice of tools."""
    if choice not in (None, "auto") and parser in FORCED_AS_JSON:
        return _FORCED if choice == "required" else _NAMED
    return STYLES.get(parser or "", PLAIN)


def call_id(form: IdForm, name: str, call: int, num_earlier: int, is_stream: bool) -> str:
    """An id for call number `call` of an answer in a conversation that has had `num_earlier` before."""
    if form is IdForm.MISTRAL:
        return "".join(random.choices(_ALPHANUMERIC, k=MISTRAL_ID_CHARS))
    if form is IdForm.KIMI:
        return f"functions.{name}:{num_earlier + call}"
    if form is IdForm.NUMBERED or (form is IdForm.SHORT and is_stream):
        return f"call_{call}_{new_id()}"
    if form is IdForm.SHORT or (form is IdForm.SHORT_WHOLE and not is_stream):
        return f"call_{new_id()}"
    return TOOL_CALL_PREFIX + new_id()


class ReasoningStyle(NamedTuple):
    """Nulls beside reasoning and beside content, what the last event has where no parser of calls is in force, and the
    events that marks at the beginning and at the end of reasoning bring. `hands_over`: whether a parser of calls reads
    the mark at the end, and so decides what it brings.
    """

    null_content: bool = False
    null_reasoning: bool = False
    after_words: Filler = Filler.EMPTY
    begin: Sequence[Delta] = ()
    end: Sequence[Delta] = ()
    hands_over: bool = True


NO_REASONING = ReasoningStyle(after_words=Filler.NOTHING)
_USUAL = ReasoningStyle()
_EMPTY = Delta(Kind.REASONING, "")
REASONING_STYLES: Mapping[str, ReasoningStyle] = {
    **dict.fromkeys(("kimi_k3", "minicpmv", "muse", "muse_glimmer", "musespark1x"), NO_REASONING),
    **dict.fromkeys(("hy_v4", "minimax_m3"), ReasoningStyle(null_content=True)),
    "granite": ReasoningStyle(True, True, Filler.NOTHING),
    "k2_horizon": ReasoningStyle(end=(Delta(Kind.NOTHING, ""), _EMPTY)),
    "olmo3": NO_REASONING._replace(begin=(_EMPTY,), end=(Delta(Kind.CONTENT, ""),), hands_over=False),
}
"""By the name of the parser; the others are usual."""


def reasoning_style(parser: str | None) -> ReasoningStyle:
    """The style of a parser; without one there is nothing to show."""
    return NO_REASONING if parser is None else REASONING_STYLES.get(parser, _USUAL)
