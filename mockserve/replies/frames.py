"""Bytes of server-sent events. A frame that is sent for each token is filled in, never encoded anew."""

from collections.abc import Sequence
from typing import Any

import orjson

from mockserve.protocol.json_text import compact_json

DONE = b"data: [DONE]\n\n"
DONE_CHUNK = b"e\r\ndata: [DONE]\n\n\r\n"
"""The same as one chunk of a chunked HTTP body."""

PLACEHOLDER = "\x00"
"""The text to build a body with before it becomes a template."""

_ENCODED_PLACEHOLDER = b"\\u0000"


def event(body: dict[str, Any]) -> bytes:
    """One event with `body` as compact JSON."""
    return b"data: %b\n\n" % compact_json(body)


def named_event(body: dict[str, Any]) -> bytes:
    """One event with its `type` as its name."""
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), compact_json(body))


def http_chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class EventTemplate:
    """An event that differs from token to token in one piece of text only; `chunked` wraps each as an HTTP chunk.

    What comes before the text says how long a chunk is, so there is one beginning for each length of text.
    """

    __slots__ = ("_after", "_before", "_beginnings", "_chunked", "_size")

    def __init__(self, before: bytes, after: bytes, chunked: bool) -> None:
        self._before = before
        self._after = after + b"\r\n" if chunked else after
        self._size = len(before) + len(after)
        self._chunked = chunked
        self._beginnings: dict[int, bytes] = {}

    def fill(self, text: str) -> bytes:
        """The event with `text` in its place."""
        escaped = orjson.dumps(text)[1:-1]
        beginning = self._beginnings.get(len(escaped)) or self._begin(len(escaped))
        return beginning + escaped + self._after

    def fill_all(self, texts: Sequence[str]) -> list[bytes]:
        """An event for each text."""
        known, after, dumps = self._beginnings, self._after, orjson.dumps
        events = []
        for text in texts:
            escaped = dumps(text)[1:-1]
            beginning = known.get(len(escaped)) or self._begin(len(escaped))
            events.append(beginning + escaped + after)
        return events

    def _begin(self, num_bytes: int) -> bytes:
        """What precedes a text of so many bytes."""
        length = b"%x\r\n" % (self._size + num_bytes) if self._chunked else b""
        beginning = self._beginnings[num_bytes] = length + self._before
        return beginning


def event_template(body: dict[str, Any], chunked: bool) -> EventTemplate:
    """The template of a body built with `PLACEHOLDER`, which must be the last text that a client chose."""
    before, _, after = event(body).rpartition(_ENCODED_PLACEHOLDER)
    return EventTemplate(before, after, chunked)
