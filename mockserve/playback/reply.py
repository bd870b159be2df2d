"""A reply to play: recorded pieces, or words to say; and what its pieces show of its tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_DELTA_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply's body, with its recorded time after the request and the number of tokens that are due with
    it."""

    after_us: int
    data: bytes
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedReply:
    """A reply: its status, its pieces, and the tokens that its usage counts.

    `text` is what it says where that is all it does; None for calls of tools, thoughts and errors. Without pieces the
    text is said in the way of the route.
    """

    path: str = ""
    status: int = 200
    content_type: str = "application/json"
    pieces: Sequence[Piece] = ()
    text: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    is_cut: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        return self.content_type.startswith("text/event-stream")


def played_reply(
    path: str, status: int, content_type: str, pieces: Sequence[tuple[int, bytes]], is_complete: bool = True
) -> PlayedReply:
    """The reply of recorded pieces."""
    events = [_payload(data) for _, data in pieces]
    if not content_type.startswith("text/event-stream"):
        events = [_parsed(b"".join(data for _, data in pieces))]
    num_prompt = max((_count(each, "prompt_tokens", "input_tokens") for each in events), default=0)
    num_output = max((_count(each, "completion_tokens", "output_tokens") for each in events), default=0)
    carriers = [carries_tokens(each) for each in events]
    num_output = num_output or sum(carriers)
    texts = [said(each) for each in events]
    is_plain = status == 200 and None not in texts
    return PlayedReply(
        path=path,
        status=status,
        content_type=content_type,
        pieces=_numbered(pieces, carriers, num_output),
        text="".join(each or "" for each in texts) if is_plain and any(texts) else None,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        is_cut=not is_complete,
    )


def _numbered(pieces: Sequence[tuple[int, bytes]], carriers: Sequence[bool], num_tokens: int) -> list[Piece]:
    """The pieces with the token each is due with: carriers share the tokens out evenly, others go with the next one."""
    num_carriers = sum(carriers) if len(carriers) == len(pieces) else 0
    if not num_carriers:
        return [Piece(after_us, data, num_tokens) for after_us, data in pieces]
    numbered = []
    num_seen = 0
    for (after_us, data), carries in zip(pieces, carriers, strict=True):
        num_seen += carries
        due = math.ceil(min(max(num_seen, 1), num_carriers) * num_tokens / num_carriers)
        numbered.append(Piece(after_us, data, num_tokens if num_seen == num_carriers and not carries else due))
    return numbered


def _payload(piece: bytes) -> Any:
    data = [line[5:].strip() for line in piece.split(b"\n") if line.startswith(b"data:")]
    return _parsed(data[0]) if data else None


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _count(event: Any, *names: str) -> int:
    if not isinstance(event, Mapping):
        return 0
    holders = [event, event.get("response"), event.get("message")]
    usages = [each.get("usage") for each in holders if isinstance(each, Mapping)]
    found = [usage.get(name) for usage in usages if isinstance(usage, Mapping) for name in names]
    return max((each for each in found if type(each) is int and 0 <= each < 2**31), default=0)


def _choices(event: Any) -> list[Mapping[str, Any]]:
    choices = event.get("choices") if isinstance(event, Mapping) else None
    return [each for each in choices if isinstance(each, Mapping)] if isinstance(choices, list) else []


def carries_tokens(event: Any) -> bool:
    """Whether an event of a stream brings words, thoughts or calls."""
    if not isinstance(event, Mapping):
        return False
    kind = event.get("type")
    if isinstance(kind, str) and (kind.endswith(".delta") or kind == "content_block_delta"):
        return True
    for choice in _choices(event):
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, Mapping) and any(map(delta.get, _DELTA_FIELDS))):
            return True
    return False


def said(event: Any) -> str | None:
    """The words of an event or of a whole reply; None where it brings something that is no words, or several choices.

    Events without any of it say nothing, which is an empty text.
    """
    if not isinstance(event, Mapping):
        return ""
    choices = _choices(event)
    if choices:
        message = choices[0].get("delta") or choices[0].get("message")
        if len(choices) > 1 or choices[0].get("index", 0):
            return None
        if not isinstance(message, Mapping):
            return str(choices[0].get("text") or "")
        if any(map(message.get, _DELTA_FIELDS[1:])):
            return None
        return str(message.get("content") or "")
    kind = event.get("type")
    delta = event.get("delta")
    if kind == "response.output_text.delta":
        return str(delta)
    if kind == "content_block_delta" and isinstance(delta, Mapping):
        return str(delta["text"]) if delta.get("type") == "text_delta" else None
    if event.get("object") == "response" or kind == "message":
        return _said_by_items(event)
    return None if isinstance(kind, str) and kind.endswith(".delta") else ""


def _said_by_items(reply: Mapping[str, Any]) -> str | None:
    items = reply.get("output") if "output" in reply else [reply]
    parts = [part for item in items or () for part in item.get("content") or () if isinstance(part, Mapping)]
    if any(part.get("type") not in ("output_text", "text") for part in parts):
        return None
    return "".join(str(part.get("text") or "") for part in parts)
