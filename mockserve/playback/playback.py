"""Recorded and hand-written replies of one server, and the search for the reply to a request."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from blis_sim.options import OptionError
from blis_sim.options.files import read_text
from blis_sim.options.yaml_text import load_yaml
from mockserve.options.content import PlaybackOptions
from mockserve.playback.fixtures import Fixture, FixtureSearch, Seen, read_fixtures
from mockserve.playback.journal import MOST_CHARACTERS, Journal
from mockserve.playback.reply import Conversation, PlayedReply, conversation_of, exact_key, recorded_reply
from mockserve.protocol.errors import ApiError
from mockserve.protocol.reading.body import large_json
from mockserve.protocol.reading.types import as_flag, flag_problem
from traces.content import RecordedExchange, read_content
from traces.redaction import Redactor, secrets_in

MOST_FORWARDED_BYTES = 64 << 20
"""Memory of the exchanges that are added while the server runs; the file gets further ones, too."""
_PARSED_AT_ONCE_BYTES = 1 << 20
"""Length of a body that is parsed in one piece, during which no other thread runs."""
_PIECE_BYTES = 200
"""Memory of a piece of a reply besides its bytes."""


@dataclass(frozen=True, slots=True)
class PlaybackRequest:
    """A request in the form used by the search; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    conversation: Conversation
    seen: Seen
    keys: Mapping[str, bytes]
    """Digests by match mode, for the search among recorded replies."""

    @property
    def model(self) -> str:
        """The requested model."""
        return self.seen.texts["model"]

    @property
    def last_user(self) -> str:
        """Text of the last user message."""
        return self.seen.texts["last_user"]

    def without_content(self) -> "PlaybackRequest":
        """Return the request without its values, and with the beginning of its last user message alone."""
        cut = {name: text[:MOST_CHARACTERS] for name, text in self.seen.texts.items()}
        seen = Seen(self.headers, cut, b"")
        return PlaybackRequest(self.path, self.headers, self.raw, None, Conversation(()), seen, self.keys)

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
        self._hiding = lru_cache(maxsize=256)(self._redactor.hiding)
        self._by_key: dict[str, dict[bytes, _ReplyQueue]] = {
            match_mode: defaultdict(_ReplyQueue) for match_mode in options.playback_match
        }
        self._in_order: dict[str, list[PlayedReply]] = defaultdict(list)
        self._places: dict[str, int] = defaultdict(int)
        self._num_forwarded_bytes = 0
        if options.playback.endswith((".yaml", ".yml")):
            self._fixtures = _fixtures_of(Path(options.playback))
        elif options.playback:
            recording = read_content(Path(options.playback))
            self._redactor = Redactor(recording.redacted)
            self._hiding = lru_cache(maxsize=256)(self._redactor.hiding)
            for exchange in recording.exchanges:
                self.add(exchange)

    def redactor_for(self, headers: Iterable[tuple[str, str]], target: str) -> Redactor:
        """Redactor of the recording, which also hides the keys in the head of this request.

        Requests are redacted before they are compared with the recording.
        """
        return self._hiding(tuple(secrets_in(headers, target)))

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
        # Recordings of earlier releases have what is recognised as a key only now.
        body = self._redactor.data(exchange.body)
        for match_mode, key in _parse_request(path, {}, body, self._by_key).keys.items():
            self._by_key[match_mode][key].add(reply)
        self._in_order[path].append(reply)

    def keep(self, exchange: RecordedExchange) -> None:
        """Add an exchange that was forwarded, as long as all of them take no more than `MOST_FORWARDED_BYTES`."""
        num_bytes = len(exchange.body) + sum(len(data) + _PIECE_BYTES for _, data in exchange.pieces)
        if self._num_forwarded_bytes + num_bytes <= MOST_FORWARDED_BYTES:
            self._num_forwarded_bytes += num_bytes
            self.add(exchange)

    def playback_request(self, path: str, headers: Mapping[str, str], raw: bytes) -> PlaybackRequest:
        """Return a request in the form of the recording: without keys, and redacted."""
        with suppress(UnicodeDecodeError):  # a body that is no text stays as it is
            text = raw.decode()
            redacted = self.redactor_for(headers.items(), path).body(text)
            raw = raw if redacted is text else redacted.encode()
        match_modes = [match_mode for match_mode, replies in self._by_key.items() if replies]
        return _parse_request(_path(path), headers, raw, match_modes)

    def rules(self, playback_request: PlaybackRequest) -> FixtureSearch:
        """Return the search for the fixtures that a request meets."""
        return FixtureSearch(self.fixtures, playback_request.seen)

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


def _parse_request(
    path: str, headers: Mapping[str, str], raw: bytes, match_modes: Iterable[str] = ()
) -> PlaybackRequest:
    try:
        body = orjson.loads(raw) if len(raw) <= _PARSED_AT_ONCE_BYTES else large_json([raw])
    except (ApiError, ValueError, RecursionError):
        body = None
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
    return PlaybackRequest(path, headers, raw, body, conversation, Seen(headers, texts, raw), keys)


def _path(target: str) -> str:
    return target.partition("?")[0]


def _fixtures_of(path: Path) -> list[Fixture]:
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
    return read_fixtures(value, f"--playback: {path}")
