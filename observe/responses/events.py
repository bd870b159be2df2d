"""Events of a streamed reply: server-sent events, and what an event of each API adds to a reply."""

from dataclasses import dataclass, replace
from typing import Any

import orjson

from observe.errors import ResponseError

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


def first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice, None if there is none."""
    choices = event.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


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


def count_of(usage: dict[str, Any], name: str, otherwise: int | None = None) -> int | None:
    """A count of tokens; `otherwise` for what can be none."""
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else otherwise


def error_text(error: Any) -> str:
    """Return the message of an error inside a reply."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else orjson.dumps(error).decode()


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
    error = answer.get("error")
    return ResponsesEvent(
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
