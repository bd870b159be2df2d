"""Recorded and hand-written replies of one server, the search for the reply to a request, and a journal."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
import re2

from blis_sim.options import OptionError
from blis_sim.options.yaml_text import load_yaml
from mockserve.options.content import PlaybackOptions
from mockserve.playback.reply import (
    Conversation,
    PlayedReply,
    RecordedPiece,
    conversation_of,
    exact_key,
    recorded_reply,
)
from mockserve.protocol.reading.types import as_flag, flag_problem
from traces.content import RecordedExchange, read_content
from traces.redaction import Redactor

_CONDITIONS = ("path", "model", "last_user", "last_user_regex", "tool_result", "tool_result_regex", "body_regex")
_REPLIES = ("text", "body", "events", "status", "tokens")
MOST_FIXTURES = 10_000
MOST_PATTERN_CHARS = 2_000


@dataclass(slots=True)
class Fixture:
    """A reply, and conditions on requests for it. `times` is the number of uses; None is unlimited."""

    conditions: Mapping[str, str]
    headers: Mapping[str, str]
    reply: PlayedReply
    times: int | None = None
    num_used: int = 0
    patterns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_used_up(self) -> bool:
        """Whether the reply has been used `times` times."""
        return self.times is not None and self.num_used >= self.times

    def matches(
        self, path: str, headers: Mapping[str, str], model: str, conversation: Conversation, raw: bytes
    ) -> bool:
        """Whether a request meets all conditions."""
        seen = {
            "path": path,
            "model": model,
            "last_user": conversation.last_user,
            "tool_result": conversation.tool_result,
            "body": raw.decode("utf-8", "replace") if "body_regex" in self.conditions else "",
        }
        if any(headers.get(name) != value for name, value in self.headers.items()):
            return False
        return all(self._meets_condition(name, seen[name.removesuffix("_regex")]) for name in self.conditions)

    def _meets_condition(self, name: str, seen: str) -> bool:
        pattern = self.patterns.get(name)
        return seen == self.conditions[name] if pattern is None else pattern.search(seen) is not None


def read_fixtures(value: Any, where: str) -> list[Fixture]:
    """Read fixtures of a parsed file or body. Raises OptionError with the location of an invalid value."""
    rows = value.get("fixtures") if isinstance(value, Mapping) else value
    if not isinstance(rows, list) or len(rows) > MOST_FIXTURES:
        raise OptionError(f"{where}: expected a list of at most {MOST_FIXTURES} fixtures, got {_shown(value)}")
    return [_fixture(row, f"{where} fixture {number}") for number, row in enumerate(rows)]


def _fixture(row: Any, where: str) -> Fixture:
    allowed = ("match", "reply", "times")
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
    patterns = {name: _pattern(conditions[name], f"{where} match {name}") for name in conditions if name.endswith("x")}
    reply = _reply(members.get("reply"), f"{where} reply", conditions.get("path", ""))
    return Fixture(conditions, {name.lower(): value for name, value in headers.items()}, reply, times, 0, patterns)


def _pattern(text: str, where: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        if len(text) > MOST_PATTERN_CHARS:
            raise re2.error(f"longer than {MOST_PATTERN_CHARS} characters")
        return re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise OptionError(f"{where}: expected a regular expression of RE2, got {_shown(text)} ({shown})") from error


def _reply(value: Any, where: str, path: str) -> PlayedReply:
    if isinstance(value, str):
        value = {"text": value}
    members = _object(value, where, _REPLIES)
    status, tokens = members.get("status", 200), members.get("tokens", 0)
    if type(status) is not int or not 200 <= status <= 599:
        raise OptionError(f"{where} status: expected a whole number between 200 and 599, got {_shown(status)}")
    if type(tokens) is not int or not 0 <= tokens <= 1_000_000:
        raise OptionError(f"{where} tokens: expected a whole number between 0 and 1000000, got {_shown(tokens)}")
    kinds = [name for name in ("text", "body", "events") if name in members]
    if len(kinds) != 1:
        raise OptionError(f"{where}: expected one of text, body and events, got {', '.join(kinds) or 'none'}")
    content = members[kinds[0]]
    if kinds == ["text"]:
        if not isinstance(content, str) or not content or status != 200 or tokens:
            raise OptionError(f"{where} text: expected a text and nothing else, got {_shown(value)}")
        return PlayedReply(path=path, text=content)
    if kinds == ["body"]:
        made = recorded_reply(path, status, "application/json", [(0, orjson.dumps(content))])
    elif isinstance(content, list):
        events = [
            (0, b"data: " + (each.encode() if isinstance(each, str) else orjson.dumps(each)) + b"\n\n")
            for each in content
        ]
        made = recorded_reply(path, status, "text/event-stream; charset=utf-8", events)
    else:
        raise OptionError(f"{where} events: expected a list, got {_shown(content)}")
    return made if not tokens else _with_tokens(made, tokens)


def _with_tokens(made: PlayedReply, tokens: int) -> PlayedReply:
    from dataclasses import replace

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


MOST_REQUESTS = 10_000
MOST_BYTES = 64 << 20
MOST_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A request and how it was answered. `body` is None for a long body, whose size is `body_bytes`."""

    number: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    model: str
    body_bytes: int
    body: Any
    last_user: str
    answered_by: str
    matched_by: str


class Journal:
    """The latest requests, at most 64 MB and 10,000 requests."""

    def __init__(self) -> None:
        self.num_seen = 0
        self._requests: deque[JournalEntry] = deque()
        self._num_bytes = 0

    def note(self, request: JournalEntry) -> None:
        """Add a request; the oldest requests are dropped at the limits."""
        self.num_seen += 1
        self._requests.append(request)
        self._num_bytes += _size(request)
        while len(self._requests) > MOST_REQUESTS or self._num_bytes > MOST_BYTES:
            self._num_bytes -= _size(self._requests.popleft())

    def reset(self) -> None:
        """Remove all requests."""
        self._requests.clear()
        self._num_bytes = 0
        self.num_seen = 0

    def found(self, requested: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the requests with the given `path`, `model`, `answered_by` and `matched_by`.

        `contains` is a part of the last user message.
        """
        exact = {name: value for name, value in requested.items() if name != "contains"}
        part = requested.get("contains", "")
        return [
            asdict(each)
            for each in self._requests
            if part in each.last_user and all(getattr(each, name) == value for name, value in exact.items())
        ]


def _size(request: JournalEntry) -> int:
    # A parsed body takes a few times the memory of its text.
    return 1000 + (0 if request.body is None else 8 * request.body_bytes) + len(request.last_user)


@dataclass(frozen=True, slots=True)
class PlaybackRequest:
    """A request in the form used by the search; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    conversation: Conversation

    @property
    def model(self) -> str:
        """The requested model."""
        model = self.body.get("model") if isinstance(self.body, Mapping) else None
        return model if isinstance(model, str) else ""

    @property
    def is_stream(self) -> bool:
        """Whether a stream is requested."""
        flag = self.body.get("stream") if isinstance(self.body, Mapping) else None
        return flag_problem(flag, "stream") is None and as_flag(flag)


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
        self._by_key: dict[str, dict[bytes, _ReplyQueue]] = {
            match_mode: defaultdict(_ReplyQueue) for match_mode in options.playback_match
        }
        self._in_order: dict[str, list[PlayedReply]] = defaultdict(list)
        self._places: dict[str, int] = defaultdict(int)
        if options.playback.endswith((".yaml", ".yml")):
            self._fixtures = _fixtures_of(Path(options.playback))
        elif options.playback:
            recording = read_content(Path(options.playback))
            self._redactor = Redactor(recording.redacted)
            for exchange in recording.exchanges:
                self.add(exchange)

    @property
    def redactor(self) -> Redactor:
        """Redactor of the recording: requests are redacted before they are compared with it."""
        return self._redactor

    @property
    def fixtures(self) -> Sequence[Fixture]:
        """All fixtures, in the order of the search."""
        return [*self.http_fixtures, *self._fixtures]

    def add(self, exchange: RecordedExchange) -> None:
        """Add an exchange; an exchange without a reply is left out."""
        if not exchange.status or exchange.method != "POST":
            return
        path = _path(exchange.path)
        kind = exchange.reply_header("content-type")
        reply = recorded_reply(path, exchange.status, kind, exchange.pieces, exchange.is_complete)
        self.num_replies += 1
        playback_request = _parse_request(path, {}, exchange.body)
        for match_mode, replies in self._by_key.items():
            if match_mode != "order":
                replies[_key(match_mode, playback_request)].add(reply)
        self._in_order[path].append(reply)

    def playback_request(self, path: str, headers: Mapping[str, str], raw: bytes) -> PlaybackRequest:
        """Return a request in the form of the recording: without keys, and redacted."""
        try:
            return _parse_request(_path(path), headers, self._redactor.body(raw.decode()).encode())
        except UnicodeDecodeError:
            return _parse_request(_path(path), headers, raw)

    def find(self, playback_request: PlaybackRequest) -> tuple[PlayedReply, str] | None:
        """Return the reply to a request and the match mode that found it; None if there is no reply."""
        for fixture in self.fixtures:
            if not fixture.is_used_up and fixture.matches(
                playback_request.path,
                playback_request.headers,
                playback_request.model,
                playback_request.conversation,
                playback_request.raw,
            ):
                fixture.num_used += 1
                return fixture.reply, "rule"
        for match_mode in self.options.playback_match:
            if match_mode == "order":
                place = self._places[playback_request.path]
                if place < len(self._in_order.get(playback_request.path, ())):
                    self._places[playback_request.path] = place + 1
                    return self._in_order[playback_request.path][place], match_mode
                continue
            found = self._by_key[match_mode].get(_key(match_mode, playback_request))
            if found is not None and (match_mode == "exact" or playback_request.conversation.turns):
                return found.next_reply(playback_request.is_stream), match_mode
        return None


def _key(match_mode: str, playback_request: PlaybackRequest) -> bytes:
    if match_mode == "exact":
        return exact_key(playback_request.path, playback_request.body, playback_request.raw)
    return playback_request.conversation.key if match_mode == "conversation" else playback_request.conversation.turn_key


def _parse_request(path: str, headers: Mapping[str, str], raw: bytes) -> PlaybackRequest:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    return PlaybackRequest(path, headers, raw, body, conversation_of(body))


def _path(target: str) -> str:
    return target.partition("?")[0]


def _fixtures_of(path: Path) -> list[Fixture]:
    try:
        value = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--playback: cannot read {path}: {error}") from error
    if isinstance(value, Mapping) and "trace_version" in value:
        content = path.with_suffix(".content.jsonl").name
        raise OptionError(
            f"--playback: {path} is the header of a trace, which has no replies; give {content}, which "
            "blis observe --proxy --record-content writes"
        )
    return read_fixtures(value, f"--playback: {path}")
