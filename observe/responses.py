"""Replies as they arrive: server-sent events of each API, folded into one reply. Pure: the caller passes instants."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from observe.errors import ResponseError
from observe.event_loop import Nanos
from observe.http import Head, HeadCache, ResponseParser

# Events of a streamed reply: server-sent events, and what an event of each API adds to a reply.

DONE = b"[DONE]"
_MAX_LINE_BYTES = 4 << 20
"""Each piece of a line that has no end yet is joined to those before, so it must not grow without limit."""


def event_in_chunk(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the data of an event at this place that fills one chunk of an HTTP body, and the place behind the chunk.
    Without a complete chunk of that kind, return no data and the given place.
    """
    size_end = data.find(b"\r\n", start, start + 8)
    if size_end > start and data.startswith(b"data: ", size_end + 2):
        try:
            end = size_end + 2 + int(data[start:size_end], 16)
        except ValueError:
            return b"", start
        if end > size_end + 10 and data.startswith(b"\n\n\r\n", end - 2):
            payload = data[size_end + 8 : end - 2].strip()
            if payload and b"\n" not in payload:
                return payload, end + 2
    return b"", start


class EventSplitter:
    """Collects bytes and gives back the data of each `data:` line that they complete.

    Every data line is an event of its own, as OpenAI-compatible servers send them. Comments, other fields and blank
    lines are passed over. Lines may end in LF or CRLF; the space after the colon is optional.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_empty(self) -> bool:
        """Whether no line has begun that is not complete."""
        return not self._rest

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ResponseError(f"a line of the stream is longer than {_MAX_LINE_BYTES >> 20} MB")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def end(self) -> list[bytes]:
        """The data of a last line that no line end followed."""
        return self.feed(b"\n")


_NON_CONTENT_KEYS = ("reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")
_TOKEN_KEYS = ("token_ids", "logprobs")
"""Members of a choice that stand for tokens, whatever their text."""
_MAX_TOKENS = 2**31 - 1
"""Upper limit of token counts; larger counts would not fit into the columns of a recording."""


def text_of(choice: dict[str, Any]) -> str:
    """The words that a choice brings."""
    message = choice.get("delta") or choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def has_non_content_tokens(choice: dict[str, Any]) -> bool:
    """Return whether a choice brings tokens that are no visible text: reasoning, or tool calls."""
    message = choice.get("delta") or choice.get("message")
    return isinstance(message, dict) and any(map(message.get, _NON_CONTENT_KEYS))


def carries_tokens(choice: dict[str, Any]) -> bool:
    """An event with text has tokens; one with an empty text too, unless it only announces the role or the end.

    A token that ends inside a UTF-8 character gives no text until the next one. Events without any text, which some
    servers send to keep a connection open, have none.
    """
    if any(map(choice.get, _TOKEN_KEYS)):
        return True
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if any(delta.get(name) for name in ("content", *_NON_CONTENT_KEYS)):
            return True
        return delta.get("content") == "" and "role" not in delta and not choice.get("finish_reason")
    return bool(choice.get("text")) or (choice.get("text") == "" and not choice.get("finish_reason"))


def opens_with_token(event: dict[str, Any]) -> bool:
    """Return whether an event is the one with which vLLM opens a stream of chat, or of Anthropic's messages.

    Other servers may open a stream before they compute. They name no token ids of the prompt, and no completion.
    """
    message, choices = event.get("message"), event.get("choices")
    if event.get("type") == "message_start" and isinstance(message, dict):
        return str(message.get("id")).startswith("chatcmpl-")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return "prompt_token_ids" in event and isinstance(delta, dict) and "role" in delta


def count_of(usage: dict[str, Any], name: str, otherwise: int | None = None) -> int | None:
    """A count of tokens; `otherwise` for what can be none."""
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else otherwise


def error_text(error: Any) -> str:
    """Return the message of an error inside a reply."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else orjson.dumps(error).decode()


_MAX_ID = 128
_ENDS = frozenset({"completed", "incomplete", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesEvent:
    """One event, or a whole reply. Absent counts are None, absent texts empty."""

    carries_tokens: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = ""
    problem: str = ""
    is_last: bool = False
    response_id: str = ""
    text: str = ""
    has_non_content_tokens: bool = False
    """Whether the event has tokens that are no visible text: reasoning, or tool calls."""


_MESSAGE_EVENTS = frozenset(
    {"content_block_delta", "content_block_start", "content_block_stop", "message_delta", "message_stop", "ping"}
)
_SIGNS = ("signature_delta", "citations_delta")
"""Kinds of deltas that come beside the tokens."""
_STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def messages_event(event: dict[str, Any]) -> ResponsesEvent | None:
    """Decode an event, or a whole reply, of Anthropic's messages; None when it is neither."""
    kind = event.get("type")
    if kind == "message_start" and isinstance(event.get("message"), dict):
        return replace(_of_message(event["message"]), completion_tokens=None, finish_reason="")
    if kind == "message":
        blocks = _objects(event.get("content"))
        text = "".join(str(each.get("text", "")) for each in blocks if each.get("type") == "text")
        return replace(
            _of_message(event), text=text, has_non_content_tokens=any(each.get("type") != "text" for each in blocks)
        )
    if kind not in _MESSAGE_EVENTS:
        return None
    delta = event.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    if kind == "message_delta":
        return _of_message({**event, **delta})
    content = delta.get("text")
    block = event.get("content_block")
    begins_call = isinstance(block, dict) and str(block.get("type")).endswith("tool_use")
    has_tokens = begins_call or (kind == "content_block_delta" and delta.get("type") not in _SIGNS)
    return ResponsesEvent(
        carries_tokens=has_tokens,
        text=content if isinstance(content, str) else "",
        has_non_content_tokens=has_tokens and content is None,
        is_last=kind == "message_stop",
    )


def _of_message(message: dict[str, Any]) -> ResponsesEvent:
    usage = message.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    fresh = count_of(counts, "input_tokens")
    cached = sum(count_of(counts, name) or 0 for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    reason = message.get("stop_reason")
    return ResponsesEvent(
        prompt_tokens=None if fresh is None else fresh + cached,
        completion_tokens=count_of(counts, "output_tokens"),
        finish_reason=_STOP_REASONS.get(reason, reason) if isinstance(reason, str) else "",
    )


def responses_event(event: dict[str, Any]) -> ResponsesEvent | None:
    """Decode an event or a whole reply; None when it is neither of this API nor of Anthropic's messages."""
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith("response."):
        answer = event.get("response")
        if isinstance(answer, dict):
            return _of_answer(answer)
        text = event.get("delta") if kind == "response.output_text.delta" else None
        item = event.get("item")
        begins_call = kind.endswith("item.added") and isinstance(item, dict) and str(item.get("type")).endswith("_call")
        has_tokens = begins_call or kind.endswith(".delta")
        return ResponsesEvent(
            carries_tokens=has_tokens,
            text=text if isinstance(text, str) else "",
            has_non_content_tokens=has_tokens and text is None,
        )
    if kind == "error":
        return ResponsesEvent(problem=str(event.get("message") or event.get("error") or "error"), is_last=True)
    if event.get("object") != "response":
        return messages_event(event)
    return replace(
        _of_answer(event), text=_text(event), has_non_content_tokens=any(map(_is_non_content_item, _items(event)))
    )


def _of_answer(answer: dict[str, Any]) -> ResponsesEvent:
    status = answer.get("status")
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    error, name = answer.get("error"), answer.get("id")
    return ResponsesEvent(
        response_id=name[:_MAX_ID] if isinstance(name, str) else "",
        prompt_tokens=count_of(counts, "input_tokens"),
        completion_tokens=count_of(counts, "output_tokens"),
        finish_reason=_finish_reason(status, answer.get("incomplete_details")),
        problem=str(error.get("message") if isinstance(error, dict) else error) if error else "",
        is_last=isinstance(status, str) and status in _ENDS,
    )


def _text(answer: dict[str, Any]) -> str:
    """Return the text of a whole reply, without reasoning."""
    parts = [part for item in _items(answer) for part in _objects(item.get("content"))]
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")


def _items(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(answer.get("output"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_non_content_item(item: dict[str, Any]) -> bool:
    return item.get("type") != "message"


def _finish_reason(status: Any, details: Any) -> str:
    if status == "incomplete":
        reason = details.get("reason") if isinstance(details, dict) else None
        return "length" if reason == "max_output_tokens" else str(reason or "incomplete")
    return "stop" if status == "completed" else ""


# Folds one reply from its bytes as they arrive. Pure: the caller passes the instant of each piece.

_NOT_PLAIN = re.compile(rb"[^ !#-\[\]-~]").search


class EventTemplate:
    """The bytes around the text of an event that carried only this text, without escapes.

    Another event may have the same bytes around plain text: printable ASCII without quotes and backslashes. It is the
    same JSON but for that text, so it carries tokens and nothing else either. What differs in any byte is not
    recognized and has to be decoded.
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
_EVENT_BYTES = 50
"""Memory of an event's instant."""
_MAX_BODY_BYTES = 64 << 20
_END_OF_STREAM = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
"""End of a stream in the form of most servers; other forms are parsed line by line."""


MOST_CHOICES = 10_000
"""Choices of a higher index are counted with the first."""
_CHOICE_BYTES = 300
"""Memory of a choice beside its places."""


@dataclass(slots=True)
class Choice:
    """One of several choices, and why it ended.

    In a stream it has the places of its chunks with tokens, but for the first choice; in a whole reply its bytes.
    """

    places: list[int] = field(default_factory=list)
    num_bytes: int = 0
    finish_reason: str = ""


def _whole_choice(choice: Any) -> Choice:
    if not isinstance(choice, dict):
        return Choice()
    said = choice.get("message") or choice.get("text")
    if isinstance(said, dict):
        said = {name: value for name, value in said.items() if value and name != "role"}
    reason = choice.get("finish_reason")
    return Choice(num_bytes=len(orjson.dumps(said)), finish_reason=reason if isinstance(reason, str) else "")


class Reply:
    """The answer to one completion request, streamed or whole. Raises ResponseError from `feed`.

    `chunk_times` has one instant per data event, with the role and usage events and without `[DONE]`. Of the Responses
    API, which reports all it does, it has only those with tokens. `carries_tokens` has a 1 where the event of the same
    place carries generated tokens. `first_event` is when the first event of any kind came, also one that `chunk_times`
    lacks.
    """

    __slots__ = (
        "_begins_with_token",
        "_body",
        "_content",
        "_events",
        "_first_body_byte",
        "_is_event_stream",
        "_parser",
        "_stencil",
        "cached_tokens",
        "carries_tokens",
        "choices",
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
        "response_id",
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
        self.choices: dict[int, Choice] = {}
        """Several choices by their index; of a stream those behind the first."""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        """Tokens of the prompt that the server found in its prefix cache, where it says so."""
        self.completion_tokens: int | None = None
        self.finish_reason = ""
        self.response_id = ""
        """The id by which a later request of the Responses API goes on; empty for the other APIs."""
        self.done = False
        self.is_all_content = True
        """False for a reply with tokens that `content` leaves out: reasoning, or tool calls."""
        self.problem = ""
        self.is_server_problem = False
        """Whether `problem` is in the words of the server."""
        self.first_byte: Nanos = 0
        self.first_event: Nanos = 0
        self._begins_with_token = False
        self._is_event_stream = False
        self._first_body_byte: Nanos = 0
        self._parser = ResponseParser(heads)
        self._content = bytearray()
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
    def body(self) -> bytes:
        """The body of an answer with status 200 that is no stream."""
        return bytes(self._body)

    @property
    def num_held_bytes(self) -> int:
        """Memory that the answer takes so far."""
        return (
            len(self._body)
            + len(self._content)
            + _EVENT_BYTES * len(self.chunk_times)
            + _CHOICE_BYTES * len(self.choices)
        )

    @property
    def content(self) -> str:
        """Return the text of the reply, without reasoning."""
        return self._content.decode("utf-8", "replace")

    @property
    def first_token(self) -> Nanos:
        """When the first event with a token came, or the first byte of a reply that is no stream; 0 before that.

        vLLM opens a stream of chat when its first token is there. It sends no event for a token without text or call,
        such as a mark of reasoning or text that a parser holds back. Where it counts more tokens than events had, the
        event that opens the stream is that of the first token.
        """
        if not self.streaming:
            return self.chunk_times[0] if self.chunk_times else 0
        if self._begins_with_token and (self.completion_tokens or 0) > sum(self.carries_tokens):
            return self.first_event
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
                    self._content += b"".join(texts)
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
            self._content += text
            self.chunk_times.append(at)
            self.carries_tokens.append(True)
        else:
            self._decode(payload, at)

    def _decode(self, payload: bytes, at: Nanos) -> None:
        if payload == DONE:
            self.done = True
            return
        is_first = not self.first_event
        self.first_event = self.first_event or at
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            event = None
        if is_first:
            self._begins_with_token = isinstance(event, dict) and opens_with_token(event)
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
        self.response_id = content.response_id or self.response_id
        if content.problem:
            self.problem, self.is_server_problem = content.problem, True
        self.done = self.done or content.is_last
        if content.text:
            self._content += content.text.encode("utf-8", "replace")
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
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict):
                self.cached_tokens = count_of(details, "cached_tokens", self.cached_tokens)
        if "error" in event:
            is_only_text = False
            self.problem, self.is_server_problem = error_text(event["error"]), True
        found = event.get("choices")
        choices: list[Any] = found if isinstance(found, list) else []
        choice = choices[0] if choices and isinstance(choices[0], dict) else None
        if choice is None:
            return False
        other = self._other_choice(choices, is_whole=not payload)
        if other is not None:
            return self._take_other_choice(choice, other)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            is_only_text = False
            self._end_first_choice(reason)
        if has_non_content_tokens(choice):
            is_only_text = False
            self.is_all_content = False
        text = text_of(choice)
        if not text:
            # An output that is empty has the token that ends it.
            return carries_tokens(choice) or bool(self.finish_reason and 1 not in self.carries_tokens)
        self._content += text.encode("utf-8", "replace")
        if is_only_text and payload:
            self._stencil.learn(payload, text)
        return True

    def _end_first_choice(self, reason: str) -> None:
        self.finish_reason = reason
        if self.choices:
            self.choices.setdefault(0, Choice()).finish_reason = reason

    def _other_choice(self, choices: list[Any], is_whole: bool) -> Choice | None:
        """Return the choice that an event of a stream is about, if it is not the first one. Keep all of a whole
        reply."""
        if is_whole:
            self.choices = {place: _whole_choice(each) for place, each in enumerate(choices[:MOST_CHOICES])}
            return None
        index = choices[0].get("index")
        if type(index) is int and 0 < index < MOST_CHOICES:
            return self.choices.setdefault(index, Choice())
        return None

    def _take_other_choice(self, choice: dict[str, Any], other: Choice) -> bool:
        """Record an event of a choice behind the first; whether it carries tokens."""
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.finish_reason = other.finish_reason = reason
        has_tokens = bool(text_of(choice)) or carries_tokens(choice) or bool(reason and not other.places)
        if has_tokens:
            other.places.append(len(self.chunk_times) - 1)
        return has_tokens

    def _finish(self, at: Nanos) -> None:
        if self._is_event_stream:
            for payload in self._events.end():
                self._take_event(payload, at)
            if not (self.problem or self.done or self.finish_reason):
                self.problem = "the stream ended without [DONE]"
        elif self.status_code == 200:
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
