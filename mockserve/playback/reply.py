"""The conversation of a request to any interface, and a reply to play: recorded pieces, or a text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of a request, each with its role and its text."""

    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All turns as one text."""
        return "\n".join(f"{role}: {words}" for role, words in self.turns)

    @property
    def last_user(self) -> str:
        """Text of the last user turn; of the last turn without a user turn."""
        event_text = [words for role, words in self.turns if role == "user"]
        return event_text[-1] if event_text else self.turns[-1][1] if self.turns else ""

    @property
    def tool_result(self) -> str:
        """Text of the last turn if it is a tool result; empty otherwise."""
        return self.turns[-1][1] if self.turns and self.turns[-1][0] == "tool" else ""

    @property
    def key(self) -> bytes:
        """A digest of all turns."""
        return _digest(list(self.turns))

    @property
    def turn_key(self) -> bytes:
        """A digest of the number of turns and the last turn."""
        return _digest([len(self.turns), self.turns[-1] if self.turns else ""])


def conversation_of(body: Any, keeps_spaces: bool = False) -> Conversation:
    """Return the conversation of a parsed body, which may have no turns.

    Spaces around texts are removed unless `keeps_spaces`, as a chat template may do.
    """
    if not isinstance(body, Mapping):
        return Conversation(())
    turns = [("system", _words(body[name], keeps_spaces)) for name in ("system", "instructions") if body.get(name)]
    found = body.get("messages", body.get("input"))
    if isinstance(found, list):
        for item in found:
            if isinstance(item, Mapping):
                turns += _of_message(item, keeps_spaces)
    elif isinstance(found, str):
        turns.append(("user", _words(found, keeps_spaces)))
    if "prompt" in body and found is None:
        prompt = body["prompt"]
        turns.append(("user", prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()))
    return Conversation(tuple(turns))


def exact_key(path: str, body: Any, raw: bytes) -> bytes:
    """Return a digest of a request's path and its body, independent of the order of members and of spaces between
    them."""
    try:
        content = orjson.dumps(body, option=orjson.OPT_SORT_KEYS) if body is not None else raw
    except TypeError:
        content = raw
    return blake2b(path.encode("utf-8", "replace") + b"\0" + content, digest_size=16).digest()


def _of_message(item: Mapping[str, Any], keeps_spaces: bool) -> list[tuple[str, str]]:
    if item.get("type") == "function_call_output":
        return [("tool", _words(item.get("output"), keeps_spaces))]
    role = item.get("role")
    role = role if isinstance(role, str) else "assistant"
    role = "system" if role == "developer" else role
    content = item.get("content")
    results = []
    if isinstance(content, list):
        results = [each for each in content if isinstance(each, Mapping) and each.get("type") == "tool_result"]
        content = [each for each in content if each not in results]
    turns = [("tool", _words(each.get("content"), keeps_spaces)) for each in results]
    words = _words(content, keeps_spaces)
    calls = [_call(each) for each in item.get("tool_calls") or () if isinstance(each, Mapping)]
    if item.get("type") == "function_call":
        calls.append(_call({"function": item}))
    if words or calls or not results:
        turns.append((role, " ".join(filter(None, [words, *calls]))))
    return turns


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return f"{function.get('name', '')}({function.get('arguments', '')})"


def _words(content: Any, keeps_spaces: bool) -> str:
    if isinstance(content, str):
        return content if keeps_spaces else content.strip()
    if isinstance(content, list):
        return "\n".join(filter(None, (_words(each, keeps_spaces) for each in content)))
    if isinstance(content, Mapping):
        text = content.get("text", content.get("content"))
        if text is not None:
            return _words(text, keeps_spaces)
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
    return ""


def _digest(value: Any) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=16).digest()


_DELTA_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class RecordedPiece:
    """A part of a reply's body, with its recorded time after the request and the number of tokens due with it."""

    after_us: int
    data: bytes
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedReply:
    """A reply: its status, its pieces, and the tokens of its usage.

    `text` is the text of a reply that is only text; None for tool calls, reasoning and errors. A reply without pieces
    is `text` in the format of the route.
    """

    path: str = ""
    status: int = 200
    content_type: str = "application/json"
    pieces: Sequence[RecordedPiece] = ()
    text: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    is_cut: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether the reply is a stream of events."""
        return self.content_type.startswith("text/event-stream")


def recorded_reply(
    path: str, status: int, content_type: str, pieces: Sequence[tuple[int, bytes]], is_complete: bool = True
) -> PlayedReply:
    """Return the reply of recorded pieces."""
    events = [_payload(data) for _, data in pieces]
    if not content_type.startswith("text/event-stream"):
        events = [_parsed(b"".join(data for _, data in pieces))]
    num_prompt = max((_count(each, "prompt_tokens", "input_tokens") for each in events), default=0)
    num_output = max((_count(each, "completion_tokens", "output_tokens") for each in events), default=0)
    carriers = [carries_tokens(each) for each in events]
    num_output = num_output or sum(carriers)
    texts = [event_text(each) for each in events]
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


def _numbered(pieces: Sequence[tuple[int, bytes]], carriers: Sequence[bool], num_tokens: int) -> list[RecordedPiece]:
    """Return the pieces with the token that each is due with.

    Pieces with content share the tokens evenly; any other piece has the token of the next one.
    """
    num_carriers = sum(carriers) if len(carriers) == len(pieces) else 0
    if not num_carriers:
        return [RecordedPiece(after_us, data, num_tokens) for after_us, data in pieces]
    numbered = []
    num_seen = 0
    for (after_us, data), carries in zip(pieces, carriers, strict=True):
        num_seen += carries
        due = math.ceil(min(max(num_seen, 1), num_carriers) * num_tokens / num_carriers)
        numbered.append(RecordedPiece(after_us, data, num_tokens if num_seen == num_carriers and not carries else due))
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
    """Whether an event of a stream has text, reasoning or calls."""
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


def event_text(event: Any) -> str | None:
    """Return the text of an event or of a whole reply; None if it has other content, or several choices.

    An event without content has an empty text.
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
        return _text_of_items(event)
    return None if isinstance(kind, str) and kind.endswith(".delta") else ""


def _text_of_items(reply: Mapping[str, Any]) -> str | None:
    items = reply.get("output") if "output" in reply else [reply]
    parts = [part for item in items or () for part in item.get("content") or () if isinstance(part, Mapping)]
    if any(part.get("type") not in ("output_text", "text") for part in parts):
        return None
    return "".join(str(part.get("text") or "") for part in parts)
