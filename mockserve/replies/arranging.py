"""What each token of a stream brings under a parser: parts of calls held back, and events with nothing to say."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from mockserve.content.answer import Delta, Kind
from mockserve.replies.call_style import CALL_KINDS, Arrival, CallStyle, Filler, Fillers, NoArguments

Deltas: TypeAlias = Sequence[Sequence[Delta]]
EMPTY_OBJECT = "{}"


def arranged(deltas: Deltas, style: CallStyle, is_cut: bool) -> list[tuple[Delta, ...]]:
    """What each token brings. With `is_cut` the last call is not complete."""
    calls = _Calls(deltas)
    if not calls.texts:
        told = [tuple(each) for each in deltas]
        has_words = any(each.kind is Kind.CONTENT for brought in told for each in brought)
        return _with_last(told, style.fillers.after_words, 0) if has_words else told
    told = _held_back(calls.without_skipped(style), style, calls, is_cut)
    if style.holds_end and not is_cut:
        _hold_end(told)
    return _filled(told, style.fillers, calls)


def marked(told: list[tuple[Delta, ...]], begin: Sequence[Delta], end: Sequence[Delta]) -> list[tuple[Delta, ...]]:
    """`told` with what the marks before and after reasoning bring, where a token brings nothing else."""
    places = [place for place, found in enumerate(told) if any(each.kind is Kind.REASONING for each in found)]
    if not places or not (begin or end):
        return told
    for place, brought in ((places[0] - 1, begin), (places[-1] + 1, end)):
        if 0 <= place < len(told) - 1 and not told[place]:
            told[place] = tuple(brought)
    return told


def without_fillings(told: list[tuple[Delta, ...]]) -> list[tuple[Delta, ...]]:
    """`told` without events that have neither words nor parts of calls, as where reasoning is hidden."""
    return [tuple(each for each in found if each.text or each.kind in CALL_KINDS) for found in told]


class _Calls:
    """Where the calls of an answer are, and the arguments of each."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas = deltas
        self.texts: dict[int, str] = {}
        self.first_place: dict[int, int] = {}
        self.last_place: dict[int, int] = {}
        self.first_arguments: dict[int, int] = {}
        for place, brought in enumerate(deltas):
            for each in brought:
                if each.kind in CALL_KINDS:
                    self._add(each, place)

    def _add(self, delta: Delta, place: int) -> None:
        call = delta.call
        self.first_place.setdefault(call, place)
        self.last_place[call] = place
        said = self.texts.setdefault(call, "")
        if delta.kind is Kind.TOOL_ARGUMENTS:
            self.texts[call] = said + delta.text
            self.first_arguments.setdefault(call, place)

    def without_skipped(self, style: CallStyle) -> list[tuple[Delta, ...]]:
        """What each token brings but for empty objects that a style leaves out."""
        if style.no_arguments is not NoArguments.SKIPPED or EMPTY_OBJECT not in self.texts.values():
            return [tuple(each) for each in self._deltas]
        return [tuple(each for each in brought if not self._is_skipped(each)) for brought in self._deltas]

    def _is_skipped(self, delta: Delta) -> bool:
        return delta.kind is Kind.TOOL_ARGUMENTS and self.texts[delta.call] == EMPTY_OBJECT

    def ready_at(self, style: CallStyle, is_cut: bool) -> dict[int, int]:
        """The token with which each call can be reported; calls that are never reported are missing."""
        if style.arrival is Arrival.ALONE:
            if style.no_arguments is not NoArguments.JOINED:
                return self.first_place
            joined = {call for call, text in self.texts.items() if text == EMPTY_OBJECT}
            return {call: (self.last_place if call in joined else self.first_place)[call] for call in self.texts}
        if style.arrival is Arrival.WITH_ARGUMENTS:
            return self.first_arguments
        found = {call: self.last_place[call] for call in self.first_arguments}
        if is_cut and found:
            del found[max(found)]
        if style.arrival is Arrival.TOGETHER:
            return {} if is_cut else dict.fromkeys(found, max(found.values(), default=0))
        return found


def _held_back(
    deltas: list[tuple[Delta, ...]], style: CallStyle, calls: _Calls, is_cut: bool
) -> list[tuple[Delta, ...]]:
    """What each token brings, with parts of calls held back until their calls are ready."""
    ready_at = calls.ready_at(style, is_cut)
    if ready_at == calls.first_place:
        return deltas
    held: list[Delta] = []
    told: list[tuple[Delta, ...]] = []
    for place, found in enumerate(deltas):
        brought = [each for each in found if each.kind not in CALL_KINDS]
        held += [each for each in found if each.kind in CALL_KINDS]
        ready = [each for each in held if place >= ready_at.get(each.call, len(deltas))]
        held = [each for each in held if place < ready_at.get(each.call, len(deltas))]
        told.append((*brought, *ready))
    return told


def _hold_end(told: list[tuple[Delta, ...]]) -> None:
    """Move the last part of the arguments to the last token."""
    place = max(place for place, found in enumerate(told) if any(each.kind in CALL_KINDS for each in found))
    *others, last = told[place]
    has_name = any(each.kind is Kind.TOOL_NAME for each in others)
    if last.kind is Kind.TOOL_ARGUMENTS and not has_name and place < len(told) - 1:
        told[place] = tuple(others)
        told[-1] = (*told[-1], last)


def _filled(told: list[tuple[Delta, ...]], fillers: Fillers, calls: _Calls) -> list[tuple[Delta, ...]]:
    """`told` with events that have nothing to say."""
    numbers = sorted(calls.texts)
    end = len(told) - 1
    first, last = calls.first_place[numbers[0]], calls.last_place[numbers[-1]]
    start = first
    while start and not told[start - 1]:
        start -= 1
    _fill(told, range(start, first), fillers.opening, 0, most=1)
    _fill(told, range(start, last), fillers.within, 0)
    for number, following in pairwise(numbers):
        between = range(calls.last_place[number] + 1, calls.first_place[following])
        if calls.texts[number] != EMPTY_OBJECT:
            _fill(told, between, fillers.between, number, most=1)
    if fillers.closes_one or len(numbers) > 1:
        _fill(told, range(last + 1, end), fillers.closing, numbers[-1], most=1)
    has_arguments = calls.texts[numbers[-1]] != EMPTY_OBJECT
    if has_arguments or fillers.after_calls is not Filler.CALL:
        return _with_last(told, fillers.after_calls, numbers[-1])
    return told


def _fill(told: list[tuple[Delta, ...]], places: range, filler: Filler, call: int, most: int | None = None) -> None:
    """Fill tokens that bring nothing, at most so many of them."""
    if filler is Filler.NOTHING:
        return
    for place in [place for place in places if not told[place]][:most]:
        told[place] = filling(filler, call)


def _with_last(told: list[tuple[Delta, ...]], filler: Filler, call: int) -> list[tuple[Delta, ...]]:
    if told and not told[-1] and filler is not Filler.NOTHING:
        told[-1] = filling(filler, call)
    return told


def filling(filler: Filler, call: int = 0) -> tuple[Delta, ...]:
    """What an event with nothing to say has."""
    if filler is Filler.NOTHING:
        return ()
    if filler is Filler.CALL:
        return (Delta(Kind.TOOL_ARGUMENTS, "", call),)
    return (Delta(Kind.CONTENT if filler is Filler.EMPTY else Kind.NOTHING, ""),)
