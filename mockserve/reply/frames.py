"""Server-sent events as bytes: frames, templates for the text of each token, and error events."""

import json
from collections.abc import Callable
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


TextFrame: TypeAlias = tuple[bytes, bytes]
"""The bytes of an event before and after its text, for events of a choice that differ only in one text."""


def filled(frame: TextFrame, text: str, chunked: bool) -> bytes:
    """Return the event of a frame with `text`; `chunked` wraps it as an HTTP chunk."""
    before, after = frame
    escaped = orjson.dumps(text)[1:-1]
    if not chunked:
        return before + escaped + after
    return b"%x\r\n%b%b%b\r\n" % (len(before) + len(escaped) + len(after), before, escaped, after)


def text_frame(body: dict[str, Any]) -> TextFrame:
    """Return the frame of a body with `PLACEHOLDER`, which must be the last text chosen by a client."""
    before, _, after = event(body).rpartition(_ENCODED_PLACEHOLDER)
    return before, after


MAX_CACHED = 256
MOST_CHOICES = 256
ID = "\x01"
CREATED = 8_888_888_888_888_888
"""Placeholders of the id and the second in a body that becomes a template. They come before all other texts of a body
that a client chooses."""

_ENCODED_ID = b"\\u0001"
_ENCODED_CREATED = str(CREATED).encode()

UsualBodies: TypeAlias = ChatBodies | CompletionBodies
NewPiece: TypeAlias = Callable[[str], Piece]
"""Returns an event with only a given text."""
Parts: TypeAlias = tuple[bytes, ...]
"""The bytes of an event before the id, before the second, after it, and where there is a text, after the text."""


class EventTemplates:
    """Templates of one server, by all fields of bodies except ids and the seconds of their creation."""

    def __init__(self) -> None:
        self._known = Memo[object, tuple[Parts, ...]](MAX_CACHED)

    def text_frame(self, bodies: UsualBodies, index: int, new_piece: NewPiece, finish_reason: str | None) -> TextFrame:
        """Return the frame of an event of choice `index` with text: of the last one, with a finish reason."""
        key = (bodies.__class__, bodies[2:], index, finish_reason)
        found = self._known.get(key)
        if found is None:
            piece = new_piece(PLACEHOLDER)
            if finish_reason is not None:
                piece = piece._replace(ending=Ending(finish_reason))
            before, between, rest = _parts(_blank(bodies).chunk(index, piece, None))
            middle, _, after = rest.rpartition(_ENCODED_PLACEHOLDER)
            found = ((before, between, middle, after),)
            self._known.keep(key, found)
        ((before, between, middle, after),) = found
        return before + orjson.dumps(bodies.id)[1:-1] + between + b"%d" % bodies.created + middle, after

    def opening(self, bodies: UsualBodies, num_choices: int, chunked: bool) -> list[bytes]:
        """Return the events before all text, without data of the prompt."""
        if num_choices > MOST_CHOICES:  # too large to be kept
            events = [event(each) for each in bodies.opening_chunks(num_choices, PromptOutput(), None)]
            return [http_chunk(each) for each in events] if chunked else events
        key = (bodies.__class__, bodies[2:], num_choices)
        found = self._known.get(key)
        if found is None:
            found = tuple(_parts(each) for each in _blank(bodies).opening_chunks(num_choices, PromptOutput(), None))
            self._known.keep(key, found)
        name, second, events = orjson.dumps(bodies.id)[1:-1], b"%d" % bodies.created, []
        for before, between, after in found:
            data = before + name + between + second + after
            events.append(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        return events


def with_templates(bodies: Bodies) -> UsualBodies | None:
    """Return the bodies if their events have templates (chat and text completions without varying details), else
    None."""
    if not isinstance(bodies, (ChatBodies, CompletionBodies)) or not bodies.id.isascii():
        return None  # a union would be made anew each time
    if isinstance(bodies, ChatBodies) and bodies.echoed:
        return None  # kept templates would keep messages of any length
    return None if bodies.weight_version is not None or bodies.shows_prompt_ids else bodies


def _blank(bodies: UsualBodies) -> UsualBodies:
    return bodies._replace(id=ID, created=CREATED)


def _parts(body: dict[str, Any]) -> Parts:
    before, _, rest = event(body).partition(_ENCODED_ID)
    between, _, rest = rest.partition(_ENCODED_CREATED)
    return before, between, rest


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
