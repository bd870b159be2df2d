"""Server-sent events as bytes: frames, templates for the text of each token, and error events."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from blis_sim.options.memo import Memo
from mockserve.protocol.bodies import Bodies, Ending, Piece, PromptOutput
from mockserve.protocol.completions import ChatBodies, CompletionBodies
from mockserve.protocol.errors import ApiError, paused
from mockserve.protocol.json_text import compact_json

DONE = b"data: [DONE]\n\n"
DONE_CHUNK = b"e\r\ndata: [DONE]\n\n\r\n"
"""An event as one chunk of a chunked HTTP body."""

PLACEHOLDER = "\x00"
"""Placeholder of the text in a body that becomes a template."""

_ENCODED_PLACEHOLDER = b"\\u0000"


def event(body: dict[str, Any]) -> bytes:
    """Return an event with `body` as compact JSON."""
    return b"data: %b\n\n" % compact_json(body)


def named_event(body: dict[str, Any]) -> bytes:
    """Return an event with its `type` as its name."""
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), compact_json(body))


def http_chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class EventTemplate:
    """An event that differs from token to token only in one text; `chunked` wraps each event as an HTTP chunk.

    The length of a chunk precedes its text, so there is one beginning for each length of text.
    """

    __slots__ = ("_after", "_before", "_beginnings", "_chunked", "_size")

    def __init__(self, before: bytes, after: bytes, chunked: bool) -> None:
        self._before = before
        self._after = after + b"\r\n" if chunked else after
        self._size = len(before) + len(after)
        self._chunked = chunked
        self._beginnings: dict[int, bytes] = {}

    def fill(self, text: str) -> bytes:
        """Return the event with `text`."""
        escaped = orjson.dumps(text)[1:-1]
        beginning = self._beginnings.get(len(escaped)) or self._begin(len(escaped))
        return beginning + escaped + self._after

    def fill_all(self, texts: Sequence[str]) -> list[bytes]:
        """Return an event for each text."""
        known, after, dumps = self._beginnings, self._after, orjson.dumps
        events = []
        for text in texts:
            escaped = dumps(text)[1:-1]
            beginning = known.get(len(escaped)) or self._begin(len(escaped))
            events.append(beginning + escaped + after)
        return events

    def _begin(self, num_bytes: int) -> bytes:
        """Return the bytes before a text of `num_bytes` bytes."""
        length = b"%x\r\n" % (self._size + num_bytes) if self._chunked else b""
        beginning = self._beginnings[num_bytes] = length + self._before
        return beginning


def event_template(body: dict[str, Any], chunked: bool) -> EventTemplate:
    """Return the template of a body with `PLACEHOLDER`, which must be the last text chosen by a client."""
    before, _, after = event(body).rpartition(_ENCODED_PLACEHOLDER)
    return EventTemplate(before, after, chunked)


MAX_CACHED = 256
MOST_CHOICES = 256
ID = "\x01"
"""Placeholder of the id in a body that becomes a template. The id is the first text of every body."""

_ENCODED_ID = b"\\u0001"

UsualBodies: TypeAlias = ChatBodies | CompletionBodies
NewPiece: TypeAlias = Callable[[str], Piece]
"""Returns an event with only a given text."""


class EventTemplates:
    """Templates of one server, by all fields of bodies except ids, including the second of their creation."""

    def __init__(self) -> None:
        self._cache = Memo[object, list[tuple[bytes, ...]]](MAX_CACHED)

    def token(self, bodies: UsualBodies, index: int, new_piece: NewPiece, chunked: bool) -> EventTemplate:
        """Return the template of an event with text of choice `index`."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            return [_around_text(event(blank.chunk(index, new_piece(PLACEHOLDER), None)))]

        return _template_of(self._parts(bodies, index, build), bodies.id, chunked)

    def end(
        self, bodies: UsualBodies, index: int, new_piece: NewPiece, finish_reason: str, chunked: bool
    ) -> EventTemplate:
        """Return the template of the last event of a choice, which has text, too."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            piece = new_piece(PLACEHOLDER)._replace(ending=Ending(finish_reason))
            return [_around_text(event(blank.chunk(index, piece, None)))]

        return _template_of(self._parts(bodies, (index, finish_reason), build), bodies.id, chunked)

    def opening(self, bodies: UsualBodies, num_choices: int) -> list[bytes]:
        """Return the events before all text, without data of the prompt."""

        def build(blank: UsualBodies) -> list[tuple[bytes, ...]]:
            return [_around_id(event(each)) for each in blank.opening_chunks(num_choices, PromptOutput(), None)]

        if num_choices > MOST_CHOICES:  # too large to be kept
            return [event(each) for each in bodies.opening_chunks(num_choices, PromptOutput(), None)]
        found = self._parts(bodies, ("opening", num_choices), build)
        if not found:
            return []
        name = _escaped_json(bodies.id)
        return [before + name + after for before, after in found]

    def _parts(
        self, bodies: UsualBodies, what: object, build: Callable[[UsualBodies], list[tuple[bytes, ...]]]
    ) -> list[tuple[bytes, ...]]:
        """Return the bytes around ids and texts of events."""
        key = (bodies.__class__, bodies[1:], what)
        found = self._cache.get(key)
        if found is None:
            found = self._cache.keep(key, build(bodies._replace(id=ID)))
        return found


def with_templates(bodies: Bodies) -> UsualBodies | None:
    """Return the bodies if their events have templates (chat and text completions without varying details), else
    None."""
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


def _template_of(parts: list[tuple[bytes, ...]], name: str, chunked: bool) -> EventTemplate:
    ((before, between, after),) = parts
    return EventTemplate(before + _escaped_json(name) + between, after, chunked)


def _escaped_json(name: str) -> bytes:
    return orjson.dumps(name)[1:-1]


NewEvent: TypeAlias = Callable[[dict[str, Any]], bytes]


def spaced_event(body: dict[str, Any]) -> bytes:
    """Return an event in Python's default JSON format: with spaces, and in ASCII."""
    return b"data: %b\n\n" % json.dumps(body).encode()


class StreamErrors(NamedTuple):
    """Format of error events, and the type of a paused server's error."""

    new_event: NewEvent
    paused_kind: str

    def event(self, error: ApiError) -> bytes:
        """Return the event of an error."""
        return self.new_event(error.body())

    def paused(self) -> ApiError:
        """Return the error of a request to a paused server."""
        return paused(self.paused_kind)


CHAT_ERRORS = StreamErrors(event, "InternalServerError")
OTHER_ERRORS = StreamErrors(spaced_event, "ServiceUnavailableError")
