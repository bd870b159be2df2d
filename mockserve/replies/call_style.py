"""How function calls look to clients under each of vLLM's parsers: their ids, and how a stream brings them."""

import random
import string
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from mockserve.content.answer import Delta, Kind
from mockserve.protocol.completions.chat_deltas import TOOL_CALL_PREFIX
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


class CallStyle(NamedTuple):
    """The looks of calls. `shows_content`: the message has a null content beside a call in a stream."""

    ids: IdForm = IdForm.RANDOM
    arrival: Arrival = Arrival.ALONE
    shows_content: bool = False


CALL_KINDS = (Kind.TOOL_NAME, Kind.TOOL_ARGUMENTS)
_PLAIN = CallStyle()
_NULL_CONTENT = CallStyle(shows_content=True)
_JOINED = CallStyle(arrival=Arrival.WITH_ARGUMENTS)
STYLES: Mapping[str, CallStyle] = {
    **dict.fromkeys(("dots", "hermes", "k2_horizon", "longcat", "poolside_v1", "qwen3_json", "apertus"), _NULL_CONTENT),
    **dict.fromkeys(("llama4_pythonic", "olmo3", "openai", "pythonic"), _JOINED),
    **dict.fromkeys(("ernie45", "granite4", "kimi_k3"), CallStyle(arrival=Arrival.WHOLE, shows_content=True)),
    "lfm2": CallStyle(arrival=Arrival.WITH_ARGUMENTS, shows_content=True),
    "kimi_k2": CallStyle(IdForm.KIMI, Arrival.WITH_ARGUMENTS),
    "mistral": CallStyle(IdForm.MISTRAL, Arrival.WITH_ARGUMENTS),
    "hunyuan_a13b": CallStyle(IdForm.SHORT),
    "minicpm5": CallStyle(IdForm.SHORT_WHOLE, Arrival.WHOLE),
    "xlam": CallStyle(IdForm.NUMBERED),
}
"""By the name of the parser; the others are plain."""


def call_style(parser: str | None) -> CallStyle:
    """The style of the calls that a parser finds."""
    return STYLES.get(parser or "", _PLAIN)


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


def arranged(deltas: Sequence[Sequence[Delta]], arrival: Arrival, is_cut: bool) -> list[tuple[Delta, ...]]:
    """What each token brings, with the names of functions held back until their arguments begin or are complete.

    With `is_cut` the last call is not complete.
    """
    if arrival is Arrival.ALONE:
        return [tuple(each) for each in deltas]
    held: dict[int, list[Delta]] = {}
    ready_at = _ready_at(deltas, arrival, is_cut)
    arranged: list[tuple[Delta, ...]] = []
    for place, found in enumerate(deltas):
        told: list[Delta] = []
        for each in found:
            if each.kind not in CALL_KINDS:
                told.append(each)
                continue
            parts = held.setdefault(each.call, [])
            parts.append(each)
            if place >= ready_at.get(each.call, len(deltas)):
                told += parts
                parts.clear()
        arranged.append(tuple(told))
    return arranged


def _ready_at(deltas: Sequence[Sequence[Delta]], arrival: Arrival, is_cut: bool) -> dict[int, int]:
    """The token by which so much of each call is there that it is told; calls of which that never is are missing."""
    found: dict[int, int] = {}
    for place, brought in enumerate(deltas):
        for each in brought:
            if each.kind is Kind.TOOL_ARGUMENTS and (arrival is Arrival.WHOLE or each.call not in found):
                found[each.call] = place
    if is_cut and arrival is Arrival.WHOLE and found:
        del found[max(found)]
    return found
