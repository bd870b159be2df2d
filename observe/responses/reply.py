"""Folds one reply from its bytes as they arrive. Pure: the caller passes the instant of each piece."""

import re
from typing import Any

import orjson

from observe.clock import Nanos
from observe.errors import ResponseError
from observe.http import Head, HeadCache, ResponseParser
from observe.responses.events import (
    DONE,
    EventSplitter,
    ResponsesEvent,
    carries_tokens,
    count_of,
    error_text,
    event_in_chunk,
    first_choice,
    has_non_content_tokens,
    responses_event,
    text_of,
)

_NOT_PLAIN = re.compile(rb"[^ !#-\[\]-~]").search


class EventTemplate:
    """The bytes around the text of an event that carried only this text, without escapes.

    Another event with the same bytes around plain text (printable ASCII without quotes and backslashes) is the same
    JSON but for that text, so it carries tokens and nothing else either. What differs in any byte is not recognized and
    has to be decoded.
    """

    __slots__ = ("_after", "_before", "_in_chunk", "_num_tries", "is_learned")

    def __init__(self, *, num_tries: int = 3) -> None:
        self._num_tries = num_tries
        self._before = b""
        self._after = b""
        self._in_chunk = (b"", b"")
        self.is_learned = False
        """Whether there is anything to compare with."""

    def learn(self, payload: bytes, text: str) -> None:
        """Derive the stencil from an event that carried only this text, if its bytes allow that; gives up after a few
        attempts."""
        if not self._num_tries or b"\\" in payload:
            return
        self._num_tries -= 1
        # Without escapes the text stands there as it is; where it is found once, that is its place.
        quoted = b'"%b"' % text.encode()
        place = payload.find(quoted)
        if place < 0 or place != payload.rfind(quoted):
            return
        self._before = payload[: place + 1]
        self._after = payload[place + len(quoted) - 1 :]
        self._in_chunk = (b"\r\ndata: " + self._before, self._after + b"\n\n\r\n")
        self.is_learned = True

    def text_of(self, payload: bytes) -> bytes:
        """The text of an event; empty if it has to be decoded."""
        if not self.is_learned or not payload.startswith(self._before) or not payload.endswith(self._after):
            return b""
        text = payload[len(self._before) : len(payload) - len(self._after)]
        return b"" if _NOT_PLAIN(text) else text

    def take_chunks(self, data: bytes, start: int) -> tuple[list[bytes], int]:
        """Texts of the events from this place on, as far as each is a chunk of its own, and the place behind them."""
        before, after = self._in_chunk
        num_before, num_after = len(before), len(after)
        texts: list[bytes] = []
        try:
            while (size_end := data.find(b"\r\n", start, start + 8)) > 0:
                end = size_end + 4 + int(data[start:size_end], 16)
                text_start, text_end = size_end + num_before, end - num_after
                if text_end <= text_start or not data.startswith(before, size_end):
                    break
                text = data[text_start:text_end]
                if not data.startswith(after, text_end) or _NOT_PLAIN(text):
                    break
                texts.append(text)
                start = end
        except ValueError:
            # A size with an extension, or none at all, is for the parser.
            return texts, start
        return texts, start


_MAX_ERROR_BYTES = 65536
_MAX_BODY_BYTES = 64 << 20
_END_OF_STREAM = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
"""End of a stream in the form of most servers; other forms are parsed line by line."""


class Reply:
    """The answer to one completion request, streamed or whole. Raises ResponseError from `feed`.

    `chunk_times` has one instant per data event, with the role and usage events and without `[DONE]`; of the
    Responses API, which reports all it does, it has only those with tokens.
    `carries_tokens` has a 1 where the event of the same place carries generated tokens. `first_event` is when the first
    event of any kind came, also one that `chunk_times` lacks.
    """

    __slots__ = (
        "_body",
        "_content",
        "_events",
        "_first_body_byte",
        "_is_event_stream",
        "_parser",
        "_stencil",
        "carries_tokens",
        "chunk_times",
        "completion_tokens",
        "done",
        "finish_reason",
        "first_byte",
        "first_event",
        "is_all_content",
        "is_server_problem",
        "problem",
        "prompt_tokens",
        "status_code",
        "streaming",
    )

    def __init__(
        self, *, streaming: bool, heads: HeadCache | None = None, stencil: EventTemplate | None = None
    ) -> None:
        self.streaming = streaming
        self.status_code = 0
        """The HTTP status, 0 before it is known."""
        self.chunk_times: list[Nanos] = []
        self.carries_tokens = bytearray()
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish_reason = ""
        self.done = False
        self.is_all_content = True
        """False for a reply with tokens that `content` leaves out: reasoning, or tool calls."""
        self.problem = ""
        self.is_server_problem = False
        """Whether `problem` is in the words of the server."""
        self.first_byte: Nanos = 0
        self.first_event: Nanos = 0
        self._is_event_stream = False
        self._first_body_byte: Nanos = 0
        self._parser = ResponseParser(heads)
        self._content: list[bytes] = []
        self._events = EventSplitter()
        self._stencil = stencil or EventTemplate()
        self._body = bytearray()

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can carry another request after this answer."""
        head = self._parser.head
        return self._parser.complete and head is not None and head.keep_alive

    @property
    def complete(self) -> bool:
        """Whether the whole answer has come."""
        return self._parser.complete

    @property
    def text(self) -> str:
        """The body of an answer that is no stream."""
        return self._body.decode("utf-8", errors="replace")

    @property
    def content(self) -> str:
        """Return the text of the reply, without reasoning."""
        return b"".join(self._content).decode("utf-8", "replace")

    @property
    def first_token(self) -> Nanos:
        """When the first event with a token came, or the first byte of a reply that is no stream; 0 before that."""
        if not self.streaming:
            return self.chunk_times[0] if self.chunk_times else 0
        place = self.carries_tokens.find(1)
        return self.chunk_times[place] if place >= 0 else 0

    def feed(self, data: bytes, at: Nanos) -> bool:
        """Take in bytes that came at this instant; true when they complete the answer."""
        if not self.first_byte:
            self.first_byte = at
        parser = self._parser
        start = 0
        while start < len(data):
            if parser.between_chunks and self._is_event_stream and self._events.is_empty:
                start = self._take_chunks(data, start, at)
                if start == len(data):
                    break
            body, start = parser.step(data, start)
            if not self.status_code and parser.head is not None:
                self._take_head(parser.head)
            if body:
                self._take(body, at)
        if parser.complete:
            self._finish(at)
            return True
        return False

    def end(self, at: Nanos) -> bool:
        """The connection was closed; true when the answer is complete with that."""
        self._parser.end()
        if self._parser.complete:
            self._finish(at)
        return self._parser.complete

    def json(self) -> Any:
        """The body of an answer that is no stream, parsed; None when it is no JSON."""
        try:
            return orjson.loads(self._body)
        except orjson.JSONDecodeError:
            return None

    def _take_head(self, head: Head) -> None:
        self.status_code = head.status
        kind = head.headers.get("content-type", "")
        self._is_event_stream = self.streaming and head.status == 200 and not kind.startswith("application/json")

    def _take_chunks(self, data: bytes, start: int, at: Nanos) -> int:
        """Take in events that are chunks of their own, as many as come first, and return the place behind them."""
        stencil = self._stencil
        while True:
            if stencil.is_learned:
                texts, start = stencil.take_chunks(data, start)
                if texts:
                    self._content += texts
                    self.chunk_times += [at] * len(texts)
                    self.carries_tokens += b"\1" * len(texts)
                    if start == len(data):
                        return start
            if data.startswith(_END_OF_STREAM, start):
                self.done = True
                self._parser.end_chunks()
                return len(data)
            payload, start = event_in_chunk(data, start)
            if not payload:
                return start
            self._decode(payload, at)

    def _take(self, body: bytes, at: Nanos) -> None:
        if self._is_event_stream:
            for payload in self._events.feed(body):
                self._take_event(payload, at)
            return
        if not self._first_body_byte:
            self._first_body_byte = at
        if len(self._body) < (_MAX_BODY_BYTES if self.status_code == 200 else _MAX_ERROR_BYTES):
            self._body += body
        elif self.status_code == 200:
            raise ResponseError(f"the answer is longer than {_MAX_BODY_BYTES >> 20} MB")

    def _take_event(self, payload: bytes, at: Nanos) -> None:
        text = self._stencil.text_of(payload)
        if text:
            self._content.append(text)
            self.chunk_times.append(at)
            self.carries_tokens.append(True)
        else:
            self._decode(payload, at)

    def _decode(self, payload: bytes, at: Nanos) -> None:
        if payload == DONE:
            self.done = True
            return
        self.first_event = self.first_event or at
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            self.chunk_times.append(at)
            self.carries_tokens.append(False)
            return
        content = None if "choices" in event else responses_event(event)
        if content is None:
            self.chunk_times.append(at)
            self.carries_tokens.append(self._take_fields(event, payload))
            return
        self._take_event_fields(content)
        if content.carries_tokens:
            self.chunk_times.append(at)
            self.carries_tokens.append(True)

    def _take_event_fields(self, content: ResponsesEvent) -> None:
        self.prompt_tokens = self.prompt_tokens if content.prompt_tokens is None else content.prompt_tokens
        self.completion_tokens = (
            self.completion_tokens if content.completion_tokens is None else content.completion_tokens
        )
        self.finish_reason = content.finish_reason or self.finish_reason
        if content.problem:
            self.problem, self.is_server_problem = content.problem, True
        self.done = self.done or content.is_last
        if content.text:
            self._content.append(content.text.encode("utf-8", "replace"))
        if content.has_non_content_tokens:
            self.is_all_content = False

    def _take_fields(self, event: dict[str, Any], payload: bytes = b"") -> bool:
        """Record the event's figures of the whole reply; whether the event carries generated tokens."""
        is_only_text = True
        usage = event.get("usage")
        if isinstance(usage, dict):
            is_only_text = False
            self.completion_tokens = count_of(usage, "completion_tokens", self.completion_tokens)
            self.prompt_tokens = count_of(usage, "prompt_tokens", self.prompt_tokens)
        if "error" in event:
            is_only_text = False
            self.problem, self.is_server_problem = error_text(event["error"]), True
        choice = first_choice(event)
        if choice is None:
            return False
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            is_only_text = False
            self.finish_reason = reason
        if has_non_content_tokens(choice):
            is_only_text = False
            self.is_all_content = False
        text = text_of(choice)
        if not text:
            # An output that is empty has the token that ends it.
            return carries_tokens(choice) or bool(self.finish_reason and 1 not in self.carries_tokens)
        self._content.append(text.encode("utf-8", "replace"))
        if is_only_text and payload:
            self._stencil.learn(payload, text)
        return True

    def _finish(self, at: Nanos) -> None:
        if self._is_event_stream:
            for payload in self._events.end():
                self._take_event(payload, at)
            if not (self.problem or self.done or self.finish_reason):
                self.problem = "the stream ended without [DONE]"
        elif self.status_code == 200:
            self._finish_whole(at)

    def _finish_whole(self, at: Nanos) -> None:
        answer = self.json()
        if self.streaming:
            self.problem = "expected a stream of events, got application/json"
        elif not isinstance(answer, dict):
            self.problem = "expected a JSON object as the answer"
        else:
            self.chunk_times = [self._first_body_byte, at]
            self.first_event = self._first_body_byte
            content = responses_event(answer)
            if content is None:
                self._take_fields(answer)
            else:
                self._take_event_fields(content)
