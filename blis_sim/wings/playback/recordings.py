"""Recorded and hand-written replies, the search for the reply to a request, and a journal of the latest requests."""

import json
import math
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import re2

from blis_sim.options import OptionError
from blis_sim.options.files import read_text
from blis_sim.options.yaml_text import load_yaml
from mockserve.faults import FaultSource
from mockserve.generation.answer import Kind, Segment, marked_reasoning
from mockserve.generation.tool_calls import marked_calls
from mockserve.options.content import PlaybackOptions
from mockserve.options.faults import FaultSettings
from mockserve.protocol.forms import FLAG, as_flag, problem_of
from mockserve.protocol.json_text import LARGE_BYTES, MOST_VALUE_BYTES, JsonBlocks, loads_with_repeats, value_bytes
from traces.content import RecordedExchange, read_content
from traces.redaction import Redactor, secrets_in
from traces.text_file import json_pieces

# The conversation of a request to any interface, and a reply to play: recorded pieces, or a text.


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
        turns.append(("user", prompt if isinstance(prompt, str) else _dumped(prompt).decode()))
    return Conversation(tuple(turns))


def exact_key(path: str, body: Any, raw: bytes) -> bytes:
    """Return a digest of a request's path and its body, independent of the order of members and of spaces between
    them."""
    digest = blake2b(path.encode("utf-8", "replace") + b"\0", digest_size=16)
    of_value = digest.copy()
    with suppress(TypeError):
        if body is not None and len(raw) > LARGE_BYTES:
            for piece in json_pieces(body, sorts_keys=True):
                of_value.update(piece)
            return of_value.digest()
        if body is not None:
            of_value.update(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
            return of_value.digest()
    digest.update(raw)
    return digest.digest()


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
    calls = [_call_text(each) for each in item.get("tool_calls") or () if isinstance(each, Mapping)]
    if item.get("type") == "function_call":
        calls.append(_call_text({"function": item}))
    if words or calls or not results:
        turns.append((role, " ".join(filter(None, [words, *calls]))))
    return turns


def _call_text(call: Mapping[str, Any]) -> str:
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
        return _dumped(content).decode()
    return ""


def _digest(value: Any) -> bytes:
    return blake2b(_dumped(value), digest_size=16).digest()


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return json.dumps(value, sort_keys=True).encode()


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
    is `text`, or else the message of `script`, in the format of the route; without either it is generated. `fault` has
    the words of the header for faults.
    """

    path: str = ""
    status: int = 200
    content_type: str = "application/json"
    pieces: Sequence[RecordedPiece] = ()
    text: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    is_cut: bool = False
    script: tuple[Segment, ...] = ()
    fault: str = ""

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


# Fixtures: hand-written replies with conditions on requests, and the search for the one that a request meets.

_CONDITIONS = ("path", "model", "last_user", "last_user_regex", "tool_result", "tool_result_regex", "body_regex")
_PATTERN_SUFFIX = "_regex"
_MESSAGE = ("text", "reasoning", "tool_calls")
_REPLIES = (*_MESSAGE, "body", "events", "status", "tokens")
MOST_FIXTURES = 10_000
MOST_BYTES = 64 << 20
"""Memory of all fixtures that are set over HTTP."""
MOST_PATTERN_CHARS = 2_000
_FIXTURE_BYTES = 2_000
"""Memory of a fixture besides its texts."""
_MOST_COMPILED = 64
_PATTERN_BYTES = 1 << 20
"""Memory of one compiled pattern, at most."""

MOST_SEARCH_S = 5.0
"""Time that the search for one request may take."""
_QUICK_FIXTURES = 500
_QUICK_CHARACTERS = 50_000
"""Fixtures, and characters that patterns go through, of a search that takes few milliseconds whatever they are."""


class SearchTooLongError(Exception):
    """Raised when the fixtures take more than `MOST_SEARCH_S` to search."""


@dataclass(frozen=True, slots=True)
class PlaybackRequest:
    """A request in the form used by the search; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    conversation: Conversation
    texts: Mapping[str, str]
    """Parts of a request that conditions of fixtures compare, by their names without `_regex`."""
    keys: Mapping[str, bytes]
    """Digests by match mode, for the search among recorded replies."""
    is_redacted: bool = False
    """Whether the body differs from what the client has sent."""
    _encoded: dict[str, bytes] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The requested model."""
        return self.texts["model"]

    @property
    def last_user(self) -> str:
        """Text of the last user message."""
        return self.texts["last_user"]

    def length(self, name: str) -> int:
        """Return the length of what patterns of a condition go through."""
        return len(self.raw if name == "body" else self.texts[name])

    def encoded(self, name: str) -> bytes:
        """Return what patterns of a condition go through."""
        if name == "body":
            return self.raw
        if name not in self._encoded:
            self._encoded[name] = self.texts[name].encode("utf-8", "replace")
        return self._encoded[name]

    def without_content(self) -> "PlaybackRequest":
        """Return the request with its value alone, for the handler, and the beginning of its last user message."""
        cut = {name: text[:MOST_CHARACTERS] for name, text in self.texts.items()}
        return replace(self, conversation=Conversation(()), texts=cut, _encoded={})

    @property
    def is_stream(self) -> bool:
        """Whether a stream is requested."""
        flag = self.body.get("stream") if isinstance(self.body, Mapping) else None
        return problem_of(FLAG, flag, "stream") is None and as_flag(flag)


@dataclass(slots=True)
class Fixture:
    """A reply, and conditions on requests for it. `times` is the number of uses; None is unlimited."""

    conditions: Mapping[str, str]
    headers: Mapping[str, str]
    reply: PlayedReply
    times: int | None = None
    num_used: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether the reply has been used `times` times."""
        return self.times is not None and self.num_used >= self.times

    @property
    def num_bytes(self) -> int:
        """Memory that the fixture takes."""
        script = [each.text for each in self.reply.script]
        texts = (*self.conditions.values(), *self.headers, *self.headers.values(), self.reply.text or "", *script)
        pieces = sum(len(each.data) + 200 for each in self.reply.pieces)
        return _FIXTURE_BYTES + 4 * sum(map(len, texts)) + pieces

    def take(self) -> bool:
        """Use the reply once. Returns False if it is used up."""
        if self.is_used_up:
            return False
        self.num_used += 1
        return True

    def matches(self, seen: PlaybackRequest) -> bool:
        """Whether a request meets all conditions."""
        if any(seen.headers.get(name) != value for name, value in self.headers.items()):
            return False
        return all(_is_met(name, value, seen) for name, value in self.conditions.items())


def _is_met(name: str, value: str, seen: PlaybackRequest) -> bool:
    if name.endswith(_PATTERN_SUFFIX):
        return _compiled(value).search(seen.encoded(name.removesuffix(_PATTERN_SUFFIX))) is not None
    return seen.texts[name] == value


@dataclass(slots=True)
class FixtureSearch:
    """The search for the fixtures that one request meets, one after the other. A thread may carry it on."""

    fixtures: Sequence[Fixture]
    seen: PlaybackRequest
    _place: int = 0
    _took_s: float = field(default=0.0)

    @property
    def is_quick(self) -> bool:
        """Whether the whole search takes a few milliseconds at most."""
        if len(self.fixtures) > _QUICK_FIXTURES:
            return False
        num_characters = sum(
            self.seen.length(name.removesuffix(_PATTERN_SUFFIX))
            for each in self.fixtures
            for name in each.conditions
            if name.endswith(_PATTERN_SUFFIX)
        )
        return num_characters <= _QUICK_CHARACTERS

    def next_match(self) -> Fixture | None:
        """Return the next fixture that is not used up and whose conditions are met; None if there is none.

        Raises SearchTooLongError.
        """
        began_s = time.monotonic() - self._took_s
        while self._place < len(self.fixtures):
            fixture = self.fixtures[self._place]
            self._place += 1
            self._took_s = time.monotonic() - began_s
            if self._took_s > MOST_SEARCH_S:
                raise SearchTooLongError
            if not fixture.is_used_up and fixture.matches(self.seen):
                return fixture
        return None


def read_fixtures(value: Any, where: str) -> list[Fixture]:
    """Read fixtures of a parsed file or body. Raises OptionError with the location of an invalid value."""
    rows = value.get("fixtures") if isinstance(value, Mapping) else value
    if not isinstance(rows, list) or len(rows) > MOST_FIXTURES:
        raise OptionError(f"{where}: expected a list of at most {MOST_FIXTURES} fixtures, got {_shown(value)}")
    return [_fixture(row, f"{where} fixture {number}") for number, row in enumerate(rows)]


def _fixture(row: Any, where: str) -> Fixture:
    allowed = ("match", "reply", "times", "fault")
    members = _object(row, where, allowed)
    match = _object(members.get("match", {}), f"{where} match", (*_CONDITIONS, "headers"))
    headers = _object(match.get("headers", {}), f"{where} match headers", None)
    conditions = {name: value for name, value in match.items() if name != "headers"}
    for name, value in [*conditions.items(), *headers.items()]:
        if not isinstance(value, str):
            raise OptionError(f"{where} match {name}: expected a text, got {_shown(value)}")
    times = members.get("times")
    if times is not None and (type(times) is not int or times < 1):
        raise OptionError(f"{where} times: expected a whole number of at least 1, got {_shown(times)}")
    for name in conditions:
        if name.endswith(_PATTERN_SUFFIX):
            _check_pattern(conditions[name], f"{where} match {name}")
    path = conditions.get("path", "")
    if "reply" in members or "fault" not in members:
        reply = _reply(members.get("reply"), f"{where} reply", path)
    else:
        reply = PlayedReply(path=path)  # which is generated, unless the fault takes its place
    if "fault" in members:
        reply = replace(reply, fault=_fault(members["fault"], f"{where} fault"))
    return Fixture(conditions, {name.lower(): value for name, value in headers.items()}, reply, times)


def _fault(words: Any, where: str) -> str:
    """Return the words of a fault, as in the header `X-Blis-Fault`."""
    if not isinstance(words, str):
        raise OptionError(f"{where}: expected a text, got {_shown(words)}")
    try:
        FaultSource(FaultSettings()).requested(words)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    return words


def _check_pattern(text: str, where: str) -> None:
    try:
        if len(text) > MOST_PATTERN_CHARS:
            raise re2.error(f"longer than {MOST_PATTERN_CHARS} characters")
        _compiled(text)
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise OptionError(f"{where}: expected a regular expression of RE2, got {_shown(text)} ({shown})") from error


@lru_cache(maxsize=_MOST_COMPILED)
def _compiled(text: str) -> Any:
    """Return a compiled pattern. The latest ones are kept, for each may take as much memory as it is allowed."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_BYTES
    return re2.compile(text, options=options)


def _reply(value: Any, where: str, path: str) -> PlayedReply:
    if isinstance(value, str):
        value = {"text": value}
    members = _object(value, where, _REPLIES)
    status, tokens = members.get("status", 200), members.get("tokens", 0)
    if type(status) is not int or not 200 <= status <= 599:
        raise OptionError(f"{where} status: expected a whole number between 200 and 599, got {_shown(status)}")
    if type(tokens) is not int or not 0 <= tokens <= 1_000_000:
        raise OptionError(f"{where} tokens: expected a whole number between 0 and 1000000, got {_shown(tokens)}")
    kinds = [name for name in (*_MESSAGE, "body", "events") if name in members]
    if not kinds or (len(kinds) > 1 and not set(kinds) <= set(_MESSAGE)):
        raise OptionError(
            f"{where}: expected a message (text, reasoning, tool_calls), a body or events, "
            f"got {', '.join(kinds) or 'none'}"
        )
    content = members[kinds[0]]
    if kinds[0] in _MESSAGE:
        if status != 200 or tokens:
            raise OptionError(f"{where}: expected a message without status and tokens, got {_shown(value)}")
        if kinds == ["text"]:
            return PlayedReply(path=path, text=_filled_text(content, f"{where} text"))
        return PlayedReply(path=path, script=tuple(_message(members, where)))
    if kinds == ["body"]:
        made = recorded_reply(path, status, "application/json", [(0, _json(content, f"{where} body"))])
    elif isinstance(content, list):
        events = [
            (0, b"data: " + (each.encode() if isinstance(each, str) else _json(each, f"{where} events")) + b"\n\n")
            for each in content
        ]
        made = recorded_reply(path, status, "text/event-stream; charset=utf-8", events)
    else:
        raise OptionError(f"{where} events: expected a list, got {_shown(content)}")
    return made if not tokens else _with_tokens(made, tokens)


def _message(members: Mapping[str, Any], where: str) -> list[Segment]:
    """Return a message as a model writes it: its reasoning, its text, its calls."""
    script: list[Segment] = []
    if "reasoning" in members:
        script += marked_reasoning(_filled_text(members["reasoning"], f"{where} reasoning"))
    if "text" in members:
        script.append(Segment(Kind.CONTENT, _filled_text(members["text"], f"{where} text")))
    calls = members.get("tool_calls", [])
    if not isinstance(calls, list):
        raise OptionError(f"{where} tool_calls: expected a list, got {_shown(calls)}")
    return script + marked_calls([_call(each, f"{where} tool_calls {number}") for number, each in enumerate(calls)])


def _call(value: Any, where: str) -> tuple[str, str]:
    """Return the name and the arguments, as JSON, of a call; a call may be written as in OpenAI's messages."""
    members = _object(value, where, ("name", "arguments", "function", "id", "type"))
    members = _object(members.get("function", members), where, None)
    arguments = members.get("arguments", {})
    text = arguments if isinstance(arguments, str) else _json(arguments, f"{where} arguments").decode()
    return _filled_text(members.get("name"), f"{where} name"), text


def _json(value: Any, where: str) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise OptionError(f"{where}: expected a JSON value, got {_shown(value)} ({error})") from None


def _filled_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{where}: expected a text, got {_shown(value)}")
    return value


def _with_tokens(made: PlayedReply, tokens: int) -> PlayedReply:
    share = tokens / max(1, made.num_output_tokens)
    pieces = [RecordedPiece(each.after_us, each.data, round(each.num_tokens * share) or tokens) for each in made.pieces]
    return replace(made, num_output_tokens=tokens, pieces=pieces)


def _object(value: Any, where: str, allowed: Sequence[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"{where}: expected members {', '.join(allowed or ())}, got {_shown(value)}")
    unknown = sorted(set(value) - set(allowed)) if allowed is not None else []
    if unknown:
        raise OptionError(f"{where}: expected {', '.join(allowed or ())}, got {unknown[0]!r}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# A journal of the latest requests to a server, and how each was answered.

MOST_REQUESTS = 10_000
MOST_BODY_BYTES = 1 << 20
MOST_CHARACTERS = 10_000
"""Characters that are kept of the last user message and of the model's name."""
_ENTRY_BYTES = 1000
"""Memory of a request besides its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A request and how it was answered. `body` is its JSON text; None for a long body, and for one that is no JSON."""

    number: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    model: str
    body_bytes: int
    body: bytes | None
    last_user: str
    answered_by: str
    matched_by: str

    def shown(self) -> dict[str, Any]:
        """Return the request as a JSON value."""
        text = self.body
        body = None if text is None else JsonBlocks(lambda: iter((text,)))
        return {name: body if name == "body" else getattr(self, name) for name in self.__slots__}

    @property
    def num_bytes(self) -> int:
        """Memory that the request takes."""
        texts = (self.path, self.model, self.last_user, *self.headers, *self.headers.values())
        return _ENTRY_BYTES + len(self.body or b"") + sum(map(sys.getsizeof, texts))


class Journal:
    """The latest requests, at most 64 MB and 10,000 requests."""

    def __init__(self) -> None:
        self.num_seen = 0
        self._requests: deque[JournalEntry] = deque()
        self._num_bytes = 0

    @property
    def entries(self) -> Sequence[JournalEntry]:
        """The requests that are kept at present, the oldest first."""
        return tuple(self._requests)

    def note(self, request: JournalEntry) -> None:
        """Add a request; the oldest requests are dropped at the limits."""
        self.num_seen += 1
        self._requests.append(request)
        self._num_bytes += request.num_bytes
        while len(self._requests) > MOST_REQUESTS or self._num_bytes > MOST_BYTES:
            self._num_bytes -= self._requests.popleft().num_bytes

    def reset(self) -> None:
        """Remove all requests."""
        self._requests.clear()
        self._num_bytes = 0
        self.num_seen = 0


def matching(entries: Iterable[JournalEntry], requested: Mapping[str, str]) -> list[JournalEntry]:
    """Return the requests with the given `path`, `model`, `answered_by` and `matched_by`.

    `contains` is a part of the last user message.
    """
    exact = {name: value for name, value in requested.items() if name != "contains"}
    part = requested.get("contains", "")
    return [
        each
        for each in entries
        if part in each.last_user and all(getattr(each, name) == value for name, value in exact.items())
    ]


# Recorded and hand-written replies of one server, and the search for the reply to a request.

MOST_FORWARDED_BYTES = 64 << 20
"""Memory of the exchanges that are added while the server runs; the file gets further ones, too."""
_PIECE_BYTES = 200
"""Memory of a piece of a reply besides its bytes."""


class KeyedReply(NamedTuple):
    """A recorded reply with the keys that find it, and the memory that it takes."""

    path: str
    keys: Mapping[str, bytes]
    reply: PlayedReply
    num_bytes: int


class _ReplyQueue:
    """Replies to requests with one key, streams apart from whole replies: each is used once, the last repeatedly."""

    __slots__ = ("_next", "_replies")

    def __init__(self) -> None:
        self._replies: dict[bool, list[PlayedReply]] = {}
        self._next = {True: 0, False: 0}

    def add(self, reply: PlayedReply) -> None:
        self._replies.setdefault(reply.is_stream, []).append(reply)

    def next_reply(self, is_stream: bool) -> PlayedReply:
        """Return the next reply, of the requested form if there is one."""
        form = is_stream if is_stream in self._replies else not is_stream
        place = self._next[form]
        self._next[form] = min(place + 1, len(self._replies[form]) - 1)
        return self._replies[form][place]


class Playback:
    """Replies by match mode. Fixtures precede recordings, and fixtures set over HTTP precede fixtures of a file."""

    def __init__(self, options: PlaybackOptions) -> None:
        """Raises OptionError and TraceError for a file that cannot be used."""
        self.options = options
        self.journal = Journal()
        self.http_fixtures: list[Fixture] = []
        """Fixtures set over HTTP."""
        self.num_replies = 0
        self._fixtures: list[Fixture] = []
        self._redactor = Redactor(())
        self._hiding = lru_cache(maxsize=256)(self._redactor.hiding)
        self._by_key: dict[str, dict[bytes, _ReplyQueue]] = {
            match_mode: defaultdict(_ReplyQueue) for match_mode in options.playback_match
        }
        self._in_order: dict[str, list[PlayedReply]] = defaultdict(list)
        self._places: dict[str, int] = defaultdict(int)
        self._num_forwarded_bytes = 0
        if options.playback.endswith((".yaml", ".yml")):
            path = Path(options.playback)
            try:
                value = load_yaml(read_text(path))
            except (OSError, ValueError) as error:
                raise OptionError(f"--playback: cannot read {path}: {error}") from error
            if isinstance(value, Mapping) and "trace_version" in value:
                content = path.with_suffix(".content.jsonl").name
                raise OptionError(
                    f"--playback: {path} is the header of a trace, which has no replies; give {content}, which "
                    "blis observe --proxy --record-content writes"
                )
            self._fixtures = read_fixtures(value, f"--playback: {path}")
        elif options.playback:
            recording = read_content(Path(options.playback))
            self._redactor = Redactor(recording.redacted)
            self._hiding = lru_cache(maxsize=256)(self._redactor.hiding)
            for exchange in recording.exchanges:
                if (found := self.read(exchange)) is not None:
                    self.add(found)

    def redactor_for(self, headers: Iterable[tuple[str, str]], target: str) -> Redactor:
        """Redactor of the recording, which also hides the keys in the head of this request.

        Requests are redacted before they are compared with the recording.
        """
        return self._hiding(tuple(secrets_in(headers, target)))

    @property
    def fixtures(self) -> Sequence[Fixture]:
        """All fixtures, in the order of the search."""
        return [*self.http_fixtures, *self._fixtures]

    def read(self, exchange: RecordedExchange, request: PlaybackRequest | None = None) -> KeyedReply | None:
        """Return the reply of an exchange with its keys; None for an exchange without a reply.

        `request` is that of the exchange, where it has been read before.
        """
        if not exchange.status or exchange.method != "POST":
            return None
        path = _path(exchange.path)
        kind = exchange.reply_header("content-type")
        reply = recorded_reply(path, exchange.status, kind, exchange.pieces, exchange.is_complete)
        # Recordings of earlier releases have what is recognised as a key only now.
        raw, body = (request.raw, request.body) if request else _redacted(self._redactor, exchange.body)
        num_bytes = len(exchange.body) + sum(len(data) + _PIECE_BYTES for _, data in exchange.pieces)
        return KeyedReply(path, _request_of(path, {}, raw, body, self._by_key).keys, reply, num_bytes)

    def add(self, found: KeyedReply) -> None:
        """Add a reply."""
        self.num_replies += 1
        for match_mode, key in found.keys.items():
            self._by_key[match_mode][key].add(found.reply)
        self._in_order[found.path].append(found.reply)

    def keep(self, found: KeyedReply) -> None:
        """Add the reply to a forwarded request, as long as all of them take at most `MOST_FORWARDED_BYTES`."""
        if self._num_forwarded_bytes + found.num_bytes <= MOST_FORWARDED_BYTES:
            self._num_forwarded_bytes += found.num_bytes
            self.add(found)

    def playback_request(self, path: str, headers: Mapping[str, str], raw: bytes) -> PlaybackRequest:
        """Return a request in the form of the recording: without keys, and redacted."""
        sent, body = _redacted(self.redactor_for(headers.items(), path), raw)
        match_modes = [match_mode for match_mode, replies in self._by_key.items() if replies]
        return _request_of(_path(path), headers, sent, body, match_modes, is_redacted=sent is not raw)

    def rules(self, playback_request: PlaybackRequest) -> FixtureSearch:
        """Return the search for the fixtures that a request meets."""
        return FixtureSearch(self.fixtures, playback_request)

    def may_know(self, playback_request: PlaybackRequest) -> bool:
        """Whether a recorded reply may answer a request."""
        return any(
            match_mode == "order" or playback_request.keys.get(match_mode, b"") in self._by_key[match_mode]
            for match_mode in self.options.playback_match
        )

    def recorded(self, playback_request: PlaybackRequest) -> tuple[PlayedReply, str] | None:
        """Return the recorded reply to a request and the match mode that found it; None if there is no reply."""
        for match_mode in self.options.playback_match:
            if match_mode == "order":
                place = self._places[playback_request.path]
                if place < len(self._in_order.get(playback_request.path, ())):
                    self._places[playback_request.path] = place + 1
                    return self._in_order[playback_request.path][place], match_mode
                continue
            found = self._by_key[match_mode].get(playback_request.keys.get(match_mode, b""))
            if found is not None and (match_mode == "exact" or playback_request.conversation.turns):
                return found.next_reply(playback_request.is_stream), match_mode
        return None


def _key(match_mode: str, path: str, body: Any, raw: bytes, conversation: Conversation) -> bytes:
    if match_mode == "exact":
        return exact_key(path, body, raw)
    return conversation.key if match_mode == "conversation" else conversation.turn_key


def _redacted(redactor: Redactor, raw: bytes) -> tuple[bytes, Any]:
    """Return a body in the form of recordings, and its value; a body that is no text stays as it is."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw, None
    parse = partial(_parsed_in_pieces, raw) if len(raw) > LARGE_BYTES else None
    redacted, body = redactor.body_and_value(text, parse, data=raw)
    return (raw if redacted is text else redacted.encode()), body


def _parsed_in_pieces(raw: bytes, _text: str) -> tuple[Any, bool]:
    """Parse a large body as its route would, and say whether members are repeated. Raises ValueError."""
    if value_bytes(raw) > MOST_VALUE_BYTES:  # which the route refuses
        raise ValueError("too many values")
    try:
        return loads_with_repeats(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _request_of(
    path: str,
    headers: Mapping[str, str],
    raw: bytes,
    body: Any,
    match_modes: Iterable[str] = (),
    *,
    is_redacted: bool = False,
) -> PlaybackRequest:
    conversation = conversation_of(body)
    keys = {each: _key(each, path, body, raw, conversation) for each in match_modes if each != "order"}
    model = body.get("model") if isinstance(body, Mapping) else None
    model = model if isinstance(model, str) else ""
    texts = {
        "path": path,
        "model": model,
        "last_user": conversation.last_user,
        "tool_result": conversation.tool_result,
    }
    return PlaybackRequest(path, headers, raw, body, conversation, texts, keys, is_redacted)


def _path(target: str) -> str:
    return target.partition("?")[0]
