"""All recorded and hand-written replies of one server, and the search for the one that fits a request."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from blis_sim.options import OptionError
from blis_sim.options.yaml_text import load_yaml
from mockserve.options.playback import PlaybackOptions
from mockserve.playback.conversation import Conversation, conversation_of, exact_key
from mockserve.playback.fixtures import Fixture, read_fixtures
from mockserve.playback.journal import Journal
from mockserve.playback.reply import PlayedReply, played_reply
from traces.content.recorded import RecordedExchange, read_content
from traces.content.redaction import Redactor


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the search sees it; names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    conversation: Conversation

    @property
    def model(self) -> str:
        """The model that it asks for."""
        model = self.body.get("model") if isinstance(self.body, Mapping) else None
        return model if isinstance(model, str) else ""

    @property
    def is_stream(self) -> bool:
        """Whether it asks for a stream."""
        return isinstance(self.body, Mapping) and self.body.get("stream") is True


class _InTurn:
    """Replies to requests with one key, streams apart from others: each is given once, and the last again and again."""

    __slots__ = ("_next", "_replies")

    def __init__(self) -> None:
        self._replies: dict[bool, list[PlayedReply]] = {}
        self._next = {True: 0, False: 0}

    def add(self, reply: PlayedReply) -> None:
        self._replies.setdefault(reply.is_stream, []).append(reply)

    def take(self, is_stream: bool) -> PlayedReply:
        """The next reply; one of the form that is requested, if there is any."""
        form = is_stream if is_stream in self._replies else not is_stream
        place = self._next[form]
        self._next[form] = min(place + 1, len(self._replies[form]) - 1)
        return self._replies[form][place]


class Playback:
    """Replies by ways to find them; fixtures come before recordings, and those set over HTTP before those of a file."""

    def __init__(self, options: PlaybackOptions) -> None:
        """Raises OptionError and TraceError for a file that cannot be used."""
        self.options = options
        self.journal = Journal()
        self.set_fixtures: list[Fixture] = []
        """Fixtures set over HTTP."""
        self.num_replies = 0
        self._fixtures: list[Fixture] = []
        self._redactor = Redactor(())
        self._by_key: dict[str, dict[bytes, _InTurn]] = {way: defaultdict(_InTurn) for way in options.playback_match}
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
        """Removal of what the recording lacks, which requests must lose to be compared with it."""
        return self._redactor

    @property
    def fixtures(self) -> Sequence[Fixture]:
        """All fixtures, in the order of the search."""
        return [*self.set_fixtures, *self._fixtures]

    def add(self, exchange: RecordedExchange) -> None:
        """Take in an exchange; one without a reply is left out."""
        if not exchange.status or exchange.method != "POST":
            return
        path = _path(exchange.path)
        kind = exchange.reply_header("content-type")
        reply = played_reply(path, exchange.status, kind, exchange.pieces, exchange.is_complete)
        self.num_replies += 1
        asked = _asked(path, {}, exchange.body)
        for way, replies in self._by_key.items():
            if way != "order":
                replies[_key(way, asked)].add(reply)
        self._in_order[path].append(reply)

    def asked(self, path: str, headers: Mapping[str, str], raw: bytes) -> Asked:
        """A request as the recording would have it: without keys, and redacted."""
        try:
            return _asked(_path(path), headers, self._redactor.body(raw.decode()).encode())
        except UnicodeDecodeError:
            return _asked(_path(path), headers, raw)

    def find(self, asked: Asked) -> tuple[PlayedReply, str] | None:
        """The reply to a request and the way in which it was found; None where there is none."""
        for fixture in self.fixtures:
            if not fixture.is_used_up and fixture.fits(
                asked.path, asked.headers, asked.model, asked.conversation, asked.raw
            ):
                fixture.num_used += 1
                return fixture.reply, "rule"
        for way in self.options.playback_match:
            if way == "order":
                place = self._places[asked.path]
                if place < len(self._in_order.get(asked.path, ())):
                    self._places[asked.path] = place + 1
                    return self._in_order[asked.path][place], way
                continue
            found = self._by_key[way].get(_key(way, asked))
            if found is not None and (way == "exact" or asked.conversation.turns):
                return found.take(asked.is_stream), way
        return None


def _key(way: str, asked: Asked) -> bytes:
    if way == "exact":
        return exact_key(asked.path, asked.body, asked.raw)
    return asked.conversation.key if way == "conversation" else asked.conversation.turn_key


def _asked(path: str, headers: Mapping[str, str], raw: bytes) -> Asked:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    return Asked(path, headers, raw, body, conversation_of(body))


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
