"""Events that differ from request to request in an id and a text only: what is around these is made once a second."""

from collections.abc import Callable
from typing import TypeAlias

import orjson

from mockserve.protocol.bodies import Bodies, Ending, Piece, Prompted
from mockserve.protocol.completions.chat_bodies import ChatBodies
from mockserve.protocol.completions.text_bodies import CompletionBodies
from mockserve.replies.frames import PLACEHOLDER, EventTemplate, event

MOST_KNOWN = 256
MOST_CHOICES = 256
ID = "\x01"
"""The id to build a body with before it becomes a template. It is the first text of every body."""

_ENCODED_ID = b"\\u0001"
_ENCODED_PLACEHOLDER = b"\\u0000"

UsualBodies: TypeAlias = ChatBodies | CompletionBodies
NewPiece: TypeAlias = Callable[[str], Piece]
"""From a text to what an event brings that brings nothing else."""


class EventTemplates:
    """Templates of one server, by all that bodies say beside their ids, the second of their creation included."""

    def __init__(self) -> None:
        self._known: dict[object, list[tuple[bytes, ...]]] = {}

    def token(self, bodies: UsualBodies, index: int, new_piece: NewPiece, chunked: bool) -> EventTemplate:
        """Of an event that brings text to choice `index`."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            return [_around_text(event(blank.chunk(index, new_piece(PLACEHOLDER), None)))]

        return _template(self._parts(bodies, index, build), bodies.id, chunked)

    def end(
        self, bodies: UsualBodies, index: int, new_piece: NewPiece, finish_reason: str, chunked: bool
    ) -> EventTemplate:
        """Of the last event of a choice, which brings text, too."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            piece = new_piece(PLACEHOLDER)._replace(ending=Ending(finish_reason))
            return [_around_text(event(blank.chunk(index, piece, None)))]

        return _template(self._parts(bodies, (index, finish_reason), build), bodies.id, chunked)

    def opening(self, bodies: UsualBodies, num_choices: int) -> list[bytes]:
        """The events before all text, which say nothing of the prompt."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            return [_around_id(event(each)) for each in blank.opening_chunks(num_choices, Prompted(), None)]

        if num_choices > MOST_CHOICES:  # too large to be kept
            return [event(each) for each in bodies.opening_chunks(num_choices, Prompted(), None)]
        found = self._parts(bodies, ("opening", num_choices), build)
        if not found:
            return []
        name = _escaped(bodies.id)
        return [before + name + after for before, after in found]

    def _parts(
        self, bodies: UsualBodies, what: object, build: Callable[[UsualBodies], list[tuple[bytes, ...]]]
    ) -> list[tuple[bytes, ...]]:
        """What is around ids and texts of events."""
        key = (bodies.__class__, bodies[1:], what)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = build(bodies._replace(id=ID))
        return found


def with_templates(bodies: Bodies) -> UsualBodies | None:
    """The bodies if their events have templates: those of the two usual formats, without details that differ."""
    if not isinstance(bodies, (ChatBodies, CompletionBodies)) or not bodies.id.isascii():
        return None  # a union would be made anew each time
    return None if bodies.weight_version is not None or bodies.shows_prompt_ids else bodies


def _around_id(data: bytes) -> tuple[bytes, bytes]:
    before, _, after = data.partition(_ENCODED_ID)
    return before, after


def _around_text(data: bytes) -> tuple[bytes, bytes, bytes]:
    before, rest = _around_id(data)
    between, _, after = rest.rpartition(_ENCODED_PLACEHOLDER)
    return before, between, after


def _template(parts: list[tuple[bytes, ...]], name: str, chunked: bool) -> EventTemplate:
    ((before, between, after),) = parts
    return EventTemplate(before + _escaped(name) + between, after, chunked)


def _escaped(name: str) -> bytes:
    return orjson.dumps(name)[1:-1]
