"""Tool calls and reasoning in streams under each of vLLM's parsers, token by token."""

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mockserve.generation.answer import Delta, Kind
from mockserve.generation.tool_calls import CUT_FORMS, ENDS_AT_NAMES, CutForm, without_beginning_of
from mockserve.options.parsers import FORCED_AS_JSON
from mockserve.protocol.completions import TOOL_CALL_PREFIX
from mockserve.realtime.in_flight import new_id

MISTRAL_ID_CHARS = 9
_ALPHANUMERIC = string.ascii_letters + string.digits


class IdFormat(Enum):
    """The format of a call's id."""

    RANDOM = "random"
    MISTRAL = "nine letters and digits"
    KIMI = "the function, and how many calls the conversation had before"
    NUMBERED = "its place among the calls of the answer"
    COUNTED = "how many calls came before it in the conversation"
    SHORT = "random, numbered in streams"
    SHORT_WHOLE = "random, without vLLM's prefix in whole replies"


class NameDelivery(Enum):
    """The fields beside a function's name in a stream."""

    ALONE = "nothing"
    WITH_ARGUMENTS = "the beginning of its arguments"
    WHOLE = "all of its arguments"
    TOGETHER = "all calls with all of their arguments"


class NoArguments(Enum):
    """The form of a call without arguments in a stream."""

    USUAL = "what it does with others"
    JOINED = "brings the empty object with the name"
    SKIPPED = "brings the name alone"
    EMPTY = "brings the name alone, and a whole reply has empty arguments"


class NullContent(Enum):
    """Parts of a call that have a null content beside them."""

    NEVER = "none"
    ALWAYS = "all"
    NAME = "the first"


class Filler(Enum):
    """The content of an empty event."""

    NOTHING = "no event, or an empty delta at the end"
    NULL = "a null content"
    EMPTY = "an empty content"
    CALL = "an empty part of the arguments of the latest call"
    LINE = "a content of one line break"


class LaterPart(Enum):
    """Extra fields in later parts of a call."""

    BARE = "nothing"
    NULL_NAME = "a null name"
    NULL_ID = "a null id"


class Fillers(NamedTuple):
    """Empty events: before the first call, within calls, between two calls, after the last call, and at the end of
    calls and of content. `closes_single_call`: `closing` also follows a single call.
    """

    opening: Filler = Filler.NOTHING
    within: Filler = Filler.NOTHING
    between: Filler = Filler.NOTHING
    closing: Filler = Filler.NOTHING
    after_calls: Filler = Filler.NOTHING
    after_words: Filler = Filler.NOTHING
    closes_single_call: bool = True


class CallStyle(NamedTuple):
    """The format of a parser's calls. `names_have_arguments`: the part with the name has arguments, possibly empty.

    `delays_end`: the end of the arguments is sent with the end of the answer. `after_reasoning`: the event for the mark
    at the end of reasoning. `cut`: the content of a whole reply with incomplete calls. `cut_at_name`: the arguments in
    a stream that is cut at the name of a function. `end_mark`: space at the end of arguments, and what may begin this
    mark, is held back until more follows; None if nothing is. `begin_mark`: the mark for content before a call.
    """

    ids: IdFormat = IdFormat.RANDOM
    arrival: NameDelivery = NameDelivery.ALONE
    null_content: NullContent = NullContent.NEVER
    part: LaterPart = LaterPart.BARE
    no_arguments: NoArguments = NoArguments.USUAL
    fillers: Fillers = Fillers()
    names_have_arguments: bool = False
    delays_end: bool = False
    after_reasoning: Filler = Filler.NOTHING
    cut: CutForm = CutForm.TEXT
    cut_at_name: str = ""
    end_mark: str | None = None
    begin_mark: str = ""

    def may_hold(self, texts: Sequence[str]) -> bool:
        """Return whether some of the content of a stream may be held back."""
        return bool(self.begin_mark) and any(self.begin_mark[0] in text for text in texts)


CALL_KINDS = (Kind.TOOL_NAME, Kind.TOOL_ARGUMENTS)
PLAIN = CallStyle()
_WORDS_END_EMPTY = Fillers(after_words=Filler.EMPTY)
_NULL_CONTENT = CallStyle(null_content=NullContent.ALWAYS)
_DEEPSEEK = CallStyle(
    fillers=Fillers(opening=Filler.EMPTY, closing=Filler.EMPTY, after_calls=Filler.EMPTY, after_words=Filler.EMPTY)
)
_DEEPSEEK_LINES = _DEEPSEEK._replace(fillers=_DEEPSEEK.fillers._replace(between=Filler.LINE))
_LLAMA = CallStyle(
    no_arguments=NoArguments.SKIPPED,
    fillers=Fillers(between=Filler.CALL, after_calls=Filler.CALL, after_words=Filler.EMPTY),
)
_PYTHON_END = Fillers(closing=Filler.EMPTY, after_calls=Filler.EMPTY, after_words=Filler.EMPTY)
_PYTHON = CallStyle(arrival=NameDelivery.WITH_ARGUMENTS, part=LaterPart.NULL_ID, fillers=_PYTHON_END)
_PYTHON_LIST = _PYTHON._replace(fillers=_PYTHON_END._replace(closes_single_call=False))
_NULL_TOGETHER = CallStyle(arrival=NameDelivery.TOGETHER, null_content=NullContent.ALWAYS)
_COUNTED = CallStyle(IdFormat.COUNTED, no_arguments=NoArguments.EMPTY)
_NULL_WHOLE = CallStyle(arrival=NameDelivery.WHOLE, null_content=NullContent.ALWAYS)
_JOINS_NOTHING = CallStyle(no_arguments=NoArguments.JOINED)
_STYLES: Mapping[str, CallStyle] = {
    "apertus": _NULL_CONTENT,
    **dict.fromkeys(
        ("hermes", "qwen3_json"), _NULL_CONTENT._replace(begin_mark="<tool_call>", end_mark="</tool_call>")
    ),
    "longcat": _NULL_CONTENT._replace(begin_mark="<longcat_tool_call>", end_mark="</longcat_tool_call>"),
    "deepseek_v3": _DEEPSEEK_LINES,
    "deepseek_v31": _DEEPSEEK,
    **dict.fromkeys(("dots", "k2_horizon"), _NULL_TOGETHER),
    **dict.fromkeys(("glm45", "glm47", "ling3", "mimo", "minimax_m3"), _JOINS_NOTHING),
    **dict.fromkeys(("granite-20b-fc", "llama3_json", "llama4_json"), _LLAMA),
    **dict.fromkeys(("granite4", "kimi_k3"), _NULL_WHOLE),
    **dict.fromkeys(("internlm", "jamba"), CallStyle(fillers=_WORDS_END_EMPTY)),
    **dict.fromkeys(("muse", "muse_glimmer", "musespark1x"), CallStyle(arrival=NameDelivery.WHOLE)),
    **dict.fromkeys(("olmo3", "pythonic"), _PYTHON_LIST),
    **dict.fromkeys(("cohere_command3", "cohere_command4"), _COUNTED),
    "ernie45": _NULL_WHOLE._replace(
        fillers=Fillers(within=Filler.NULL, after_calls=Filler.NULL, after_words=Filler.NULL)
    ),
    "gigachat3": CallStyle(end_mark=""),
    "functiongemma": CallStyle(no_arguments=NoArguments.SKIPPED),
    "hunyuan_a13b": CallStyle(IdFormat.SHORT, fillers=_WORDS_END_EMPTY),
    "hy_v3": CallStyle(null_content=NullContent.NAME, fillers=_WORDS_END_EMPTY),
    "hy_v4": CallStyle(no_arguments=NoArguments.JOINED, fillers=_WORDS_END_EMPTY),
    "kimi_k2": CallStyle(IdFormat.KIMI, NameDelivery.WITH_ARGUMENTS),
    "lfm2": _PYTHON._replace(null_content=NullContent.ALWAYS),
    "llama4_pythonic": _PYTHON,
    "minicpm5": CallStyle(IdFormat.SHORT_WHOLE, NameDelivery.WHOLE, fillers=Fillers(after_calls=Filler.EMPTY)),
    "mistral": CallStyle(IdFormat.MISTRAL, NameDelivery.WITH_ARGUMENTS, delays_end=True),
    "openai": CallStyle(arrival=NameDelivery.WITH_ARGUMENTS),
    "plamo3": CallStyle(arrival=NameDelivery.WITH_ARGUMENTS),
    "poolside_v1": _NULL_CONTENT._replace(names_have_arguments=True),
    "xlam": CallStyle(IdFormat.NUMBERED, fillers=_WORDS_END_EMPTY),
}
_EMPTY_AFTER_REASONING = (
    *("deepseek_v3", "deepseek_v31", "hunyuan_a13b", "hy_v3", "hy_v4", "internlm", "jamba", "lfm2", "llama3_json"),
    *("llama4_json", "llama4_pythonic", "olmo3", "pythonic", "xlam"),
)
"""Parsers that send an empty content for the mark at the end of reasoning."""
STYLES: Mapping[str, CallStyle] = {
    **_STYLES,
    **{name: _STYLES[name]._replace(after_reasoning=Filler.EMPTY) for name in _EMPTY_AFTER_REASONING},
    "ernie45": _STYLES["ernie45"]._replace(after_reasoning=Filler.NULL),
}
"""Styles by the name of the parser; other parsers have the style `PLAIN`."""

_FORCED = CallStyle(arrival=NameDelivery.WITH_ARGUMENTS, part=LaterPart.NULL_NAME, cut=CutForm.LEFT_OUT)
_NAMED = CallStyle(arrival=NameDelivery.WITH_ARGUMENTS, fillers=Fillers(after_calls=Filler.CALL), cut=CutForm.RAW)
NO_EVENT_BEFORE_FORCED_CALL = frozenset({"hy_v4"})
"""Parsers that send no event for the mark at the end of reasoning if a call is forced."""


def call_style(parser: str | None, choice: object = "auto", reasons: bool = False) -> CallStyle:
    """Return the style of a parser's calls for a tool choice.

    With `reasons`, the end of reasoning sends the name of a function named by the client.
    """
    is_forced = choice not in (None, "auto")
    if is_forced and parser in FORCED_AS_JSON:
        if choice == "required":
            return _FORCED
        return _NAMED._replace(arrival=NameDelivery.ALONE, names_have_arguments=True) if reasons else _NAMED
    style = STYLES.get(parser or "", PLAIN)
    if is_forced and parser in NO_EVENT_BEFORE_FORCED_CALL:
        style = style._replace(after_reasoning=Filler.NOTHING)
    return style._replace(
        cut=CUT_FORMS.get(parser or "", CutForm.TEXT),
        cut_at_name="" if parser is None or parser in ENDS_AT_NAMES else "{}",
    )


def call_id(form: IdFormat, name: str, call: int, num_earlier: int, is_stream: bool) -> str:
    """Return an id for call number `call` of an answer after `num_earlier` calls in the conversation."""
    if form is IdFormat.MISTRAL:
        return "".join(random.choices(_ALPHANUMERIC, k=MISTRAL_ID_CHARS))
    if form is IdFormat.KIMI:
        return f"functions.{name}:{num_earlier + call}"
    if form is IdFormat.COUNTED:
        return str(num_earlier + call)
    if form is IdFormat.NUMBERED or (form is IdFormat.SHORT and is_stream):
        return f"call_{call}_{new_id()}"
    if form is IdFormat.SHORT or (form is IdFormat.SHORT_WHOLE and not is_stream):
        return f"call_{new_id()}"
    return TOOL_CALL_PREFIX + new_id()


class ReasoningStyle(NamedTuple):
    """The format of a parser's reasoning: nulls beside reasoning and content, the last event without calls, and events
    for the marks of reasoning.

    `call_parser_reads_end`: a parser of calls determines the event for the end mark.
    """

    null_content: bool = False
    null_reasoning: bool = False
    after_words: Filler = Filler.EMPTY
    begin: Sequence[Delta] = ()
    end: Sequence[Delta] = ()
    call_parser_reads_end: bool = True


NO_REASONING = ReasoningStyle(after_words=Filler.NOTHING)
_USUAL = ReasoningStyle()
_EMPTY = Delta(Kind.REASONING, "")
REASONING_STYLES: Mapping[str, ReasoningStyle] = {
    **dict.fromkeys(("kimi_k3", "minicpmv", "muse", "muse_glimmer", "musespark1x"), NO_REASONING),
    **dict.fromkeys(("hy_v4", "minimax_m3"), ReasoningStyle(null_content=True)),
    "granite": ReasoningStyle(True, True, Filler.NOTHING),
    "k2_horizon": ReasoningStyle(end=(Delta(Kind.NOTHING, ""), _EMPTY)),
    "olmo3": NO_REASONING._replace(begin=(_EMPTY,), end=(Delta(Kind.CONTENT, ""),), call_parser_reads_end=False),
}
"""Styles by the name of the parser; other parsers have the style `_USUAL`."""


def reasoning_style(parser: str | None) -> ReasoningStyle:
    """Return the style of a parser; `NO_REASONING` without a parser."""
    return NO_REASONING if parser is None else REASONING_STYLES.get(parser, _USUAL)


Deltas: TypeAlias = Sequence[Sequence[Delta]]
TokenDeltas: TypeAlias = list[tuple[Delta, ...]]
"""The deltas of each token."""
EMPTY_OBJECT = "{}"


def arrange_deltas(deltas: Deltas, style: CallStyle, is_cut: bool) -> TokenDeltas:
    """Arrange the deltas of each token in the style of a parser. `is_cut`: the last call is incomplete."""
    if style.end_mark is not None or style.begin_mark:
        deltas = _with_held_ends(deltas, style.begin_mark, style.end_mark)
    calls = _Calls(deltas)
    if not calls.texts:
        token_deltas = [tuple(each) for each in deltas]
        has_words = any(each.kind is Kind.CONTENT for brought in token_deltas for each in brought)
        return _with_last(token_deltas, style.fillers.after_words, 0) if has_words else token_deltas
    token_deltas = _delay_until_ready(calls.without_skipped(style), style, calls, is_cut)
    if style.delays_end and not is_cut:
        _delay_end_of_arguments(token_deltas)
    return _with_fillers(token_deltas, style.fillers, calls)


def _with_held_ends(deltas: Deltas, begin_mark: str, end_mark: str | None) -> TokenDeltas:
    """Return the deltas of each token without ends that may begin a mark, which come when more follows.

    Space at the end of arguments is held back, too. What is still held back at the end never comes.
    """
    token_deltas: TokenDeltas = []
    held: dict[tuple[Kind, int], str] = {}
    for brought in deltas:
        shown = list[Delta]()
        for each in brought:
            ready: Delta | None = each
            if each.kind is Kind.CONTENT and begin_mark:
                ready = _ready_delta(each, held, lambda text: without_beginning_of(begin_mark, text))
            elif each.kind is Kind.TOOL_ARGUMENTS and end_mark is not None:
                ready = _ready_delta(each, held, lambda text: without_beginning_of(end_mark, text).rstrip())
            if ready is not None:
                shown.append(ready)
        token_deltas.append(tuple(shown))
    return token_deltas


def _ready_delta(delta: Delta, held: dict[tuple[Kind, int], str], ready_part: Callable[[str], str]) -> Delta | None:
    """Return a delta with what was held back before it and without what is now; None if nothing is ready."""
    place = delta.kind, delta.call
    text = held.get(place, "") + delta.text
    ready = ready_part(text)
    held[place] = text[len(ready) :]
    return replace(delta, text=ready) if ready or not text else None


def with_reasoning_marks(token_deltas: TokenDeltas, begin: Sequence[Delta], end: Sequence[Delta]) -> TokenDeltas:
    """Return `token_deltas` with the events for the marks before and after reasoning, at tokens without deltas."""
    places = [place for place, found in enumerate(token_deltas) if any(each.kind is Kind.REASONING for each in found)]
    if not places or not (begin or end):
        return token_deltas
    for place, brought in ((places[0] - 1, begin), (places[-1] + 1, end)):
        if 0 <= place < len(token_deltas) - 1 and not token_deltas[place]:
            token_deltas[place] = tuple(brought)
    return token_deltas


def without_fillings(token_deltas: TokenDeltas) -> TokenDeltas:
    """Return `token_deltas` without empty events, as for hidden reasoning."""
    return [tuple(each for each in found if each.text or each.kind in CALL_KINDS) for found in token_deltas]


class _Calls:
    """Positions of the calls of an answer, and the arguments of each."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas = deltas
        self.texts: dict[int, str] = {}
        self.first_place: dict[int, int] = {}
        self.last_place: dict[int, int] = {}
        self.first_arguments: dict[int, int] = {}
        for place, brought in enumerate(deltas):
            for each in brought:
                if each.kind in CALL_KINDS:
                    call = each.call
                    self.first_place.setdefault(call, place)
                    self.last_place[call] = place
                    arguments = self.texts.setdefault(call, "")
                    if each.kind is Kind.TOOL_ARGUMENTS:
                        self.texts[call] = arguments + each.text
                        self.first_arguments.setdefault(call, place)

    def without_skipped(self, style: CallStyle) -> TokenDeltas:
        """Return the deltas of each token without empty objects that the style omits."""
        skips = style.no_arguments in (NoArguments.SKIPPED, NoArguments.EMPTY)
        if not skips or EMPTY_OBJECT not in self.texts.values():
            return [tuple(each) for each in self._deltas]
        return [tuple(each for each in brought if not self._is_skipped(each)) for brought in self._deltas]

    def _is_skipped(self, delta: Delta) -> bool:
        return delta.kind is Kind.TOOL_ARGUMENTS and self.texts[delta.call] == EMPTY_OBJECT

    def ready_at(self, style: CallStyle, is_cut: bool) -> dict[int, int]:
        """Return the token at which each call can be reported; calls that are never reported are missing."""
        if style.arrival is NameDelivery.ALONE:
            if style.no_arguments is not NoArguments.JOINED:
                return self.first_place
            joined = {call for call, text in self.texts.items() if text == EMPTY_OBJECT}
            return {call: (self.last_place if call in joined else self.first_place)[call] for call in self.texts}
        if style.arrival is NameDelivery.WITH_ARGUMENTS:
            return self.first_arguments
        found = {call: self.last_place[call] for call in self.first_arguments}
        if is_cut and found:
            del found[max(found)]
        if style.arrival is NameDelivery.TOGETHER:
            return {} if is_cut else dict.fromkeys(found, max(found.values(), default=0))
        return found


def _delay_until_ready(deltas: TokenDeltas, style: CallStyle, calls: _Calls, is_cut: bool) -> TokenDeltas:
    """Return the deltas of each token, with parts of calls held back until their calls are ready."""
    ready_at = calls.ready_at(style, is_cut)
    if ready_at == calls.first_place:
        return deltas
    held: list[Delta] = []
    token_deltas: TokenDeltas = []
    for place, found in enumerate(deltas):
        brought = [each for each in found if each.kind not in CALL_KINDS]
        held += [each for each in found if each.kind in CALL_KINDS]
        ready = [each for each in held if place >= ready_at.get(each.call, len(deltas))]
        held = [each for each in held if place < ready_at.get(each.call, len(deltas))]
        token_deltas.append((*brought, *ready))
    return token_deltas


def _delay_end_of_arguments(token_deltas: TokenDeltas) -> None:
    """Move the last part of the arguments to the last token."""
    place = max(place for place, found in enumerate(token_deltas) if any(each.kind in CALL_KINDS for each in found))
    *others, last = token_deltas[place]
    has_name = any(each.kind is Kind.TOOL_NAME for each in others)
    if last.kind is Kind.TOOL_ARGUMENTS and not has_name and place < len(token_deltas) - 1:
        token_deltas[place] = tuple(others)
        token_deltas[-1] = (*token_deltas[-1], last)


def _with_fillers(token_deltas: TokenDeltas, fillers: Fillers, calls: _Calls) -> TokenDeltas:
    """Return `token_deltas` with the empty events of the style."""
    numbers = sorted(calls.texts)
    end = len(token_deltas) - 1
    first, last = calls.first_place[numbers[0]], calls.last_place[numbers[-1]]
    start = first
    while start and not token_deltas[start - 1]:
        start -= 1
    _add_fillers(token_deltas, range(start, first), fillers.opening, 0, most=1)
    _add_fillers(token_deltas, range(start, last), fillers.within, 0)
    for number, following in pairwise(numbers):
        between = range(calls.last_place[number] + 1, calls.first_place[following])
        if calls.texts[number] != EMPTY_OBJECT or fillers.between is Filler.LINE:
            _add_fillers(token_deltas, between, fillers.between, number, most=1)
    if fillers.closes_single_call or len(numbers) > 1:
        _add_fillers(token_deltas, range(last + 1, end), fillers.closing, numbers[-1], most=1)
    has_arguments = calls.texts[numbers[-1]] != EMPTY_OBJECT
    if has_arguments or fillers.after_calls is not Filler.CALL:
        return _with_last(token_deltas, fillers.after_calls, numbers[-1])
    return token_deltas


def _add_fillers(token_deltas: TokenDeltas, places: range, filler: Filler, call: int, most: int | None = None) -> None:
    """Add empty events to tokens without deltas, at most `most` of them."""
    if filler is Filler.NOTHING:
        return
    for place in [place for place in places if not token_deltas[place]][:most]:
        token_deltas[place] = filling(filler, call)


def _with_last(token_deltas: TokenDeltas, filler: Filler, call: int) -> TokenDeltas:
    if token_deltas and not token_deltas[-1] and filler is not Filler.NOTHING:
        token_deltas[-1] = filling(filler, call)
    return token_deltas


def filling(filler: Filler, call: int = 0) -> tuple[Delta, ...]:
    """Return the deltas of an empty event."""
    if filler is Filler.NOTHING:
        return ()
    if filler is Filler.CALL:
        return (Delta(Kind.TOOL_ARGUMENTS, "", call),)
    if filler is Filler.LINE:
        return (Delta(Kind.CONTENT, "\n"),)
    return (Delta(Kind.CONTENT if filler is Filler.EMPTY else Kind.NOTHING, ""),)
