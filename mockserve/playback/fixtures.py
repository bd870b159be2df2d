"""Fixtures: hand-written replies with conditions on requests, and the search for the one that a request meets."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import orjson
import re2

from blis_sim.options import OptionError
from mockserve.playback.reply import PlayedReply, RecordedPiece, recorded_reply

_CONDITIONS = ("path", "model", "last_user", "last_user_regex", "tool_result", "tool_result_regex", "body_regex")
_PATTERN_SUFFIX = "_regex"
_REPLIES = ("text", "body", "events", "status", "tokens")
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
class Seen:
    """A request as the conditions see it: texts by condition, without `_regex`."""

    headers: Mapping[str, str]
    texts: Mapping[str, str]
    body: bytes
    _encoded: dict[str, bytes] = field(default_factory=dict)

    def length(self, name: str) -> int:
        """Return the length of what patterns of a condition go through."""
        return len(self.body if name == "body" else self.texts[name])

    def encoded(self, name: str) -> bytes:
        """Return what patterns of a condition go through."""
        if name == "body":
            return self.body
        if name not in self._encoded:
            self._encoded[name] = self.texts[name].encode("utf-8", "replace")
        return self._encoded[name]


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
        texts = (*self.conditions.values(), *self.headers, *self.headers.values(), self.reply.text or "")
        pieces = sum(len(each.data) + 200 for each in self.reply.pieces)
        return _FIXTURE_BYTES + 4 * sum(map(len, texts)) + pieces

    def take(self) -> bool:
        """Use the reply once. Returns False if it is used up."""
        if self.is_used_up:
            return False
        self.num_used += 1
        return True

    def matches(self, seen: Seen) -> bool:
        """Whether a request meets all conditions."""
        if any(seen.headers.get(name) != value for name, value in self.headers.items()):
            return False
        return all(_is_met(name, value, seen) for name, value in self.conditions.items())


def _is_met(name: str, value: str, seen: Seen) -> bool:
    if name.endswith(_PATTERN_SUFFIX):
        return _compiled(value).search(seen.encoded(name.removesuffix(_PATTERN_SUFFIX))) is not None
    return seen.texts[name] == value


@dataclass(slots=True)
class FixtureSearch:
    """The search for the fixtures that one request meets, one after the other. A thread may carry it on."""

    fixtures: Sequence[Fixture]
    seen: Seen
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
    for name in conditions:
        if name.endswith(_PATTERN_SUFFIX):
            _check_pattern(conditions[name], f"{where} match {name}")
    reply = _reply(members.get("reply"), f"{where} reply", conditions.get("path", ""))
    return Fixture(conditions, {name.lower(): value for name, value in headers.items()}, reply, times)


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
