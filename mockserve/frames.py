"""Bytes of server-sent events. A frame that is sent for each token is filled in, never encoded anew."""

from dataclasses import dataclass
from typing import Any

import orjson

from mockserve.protocol.json_text import compact_json

DONE = b"data: [DONE]\n\n"

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


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """An event that differs from token to token in one piece of text only."""

    before: bytes
    after: bytes

    def fill(self, text: str) -> bytes:
        """The event with `text` in its place."""
        return b"%b%b%b" % (self.before, orjson.dumps(text)[1:-1], self.after)

    def fill_chunk(self, text: str) -> bytes:
        """The same as one chunk of a chunked HTTP body."""
        escaped = orjson.dumps(text)[1:-1]
        size = len(self.before) + len(escaped) + len(self.after)
        return b"%x\r\n%b%b%b\r\n" % (size, self.before, escaped, self.after)


def event_template(body: dict[str, Any]) -> EventTemplate:
    """The template of a body built with `PLACEHOLDER`, which must be the last text that a client chose."""
    before, _, after = event(body).rpartition(_ENCODED_PLACEHOLDER)
    return EventTemplate(before, after)
