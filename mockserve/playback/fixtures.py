"""Replies written by hand: the rules by which requests get them, from a YAML file or a JSON body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import re2

from blis_sim.options import OptionError
from mockserve.playback.conversation import Conversation
from mockserve.playback.reply import Piece, PlayedReply, played_reply

_CONDITIONS = ("path", "model", "last_user", "last_user_regex", "tool_result", "tool_result_regex", "body_regex")
_REPLIES = ("text", "body", "events", "status", "tokens")
MOST_FIXTURES = 10_000
MOST_PATTERN_CHARS = 2_000


@dataclass(slots=True)
class Fixture:
    """A reply and the conditions of a request for it. `times` is how often it is given; None is always."""

    conditions: Mapping[str, str]
    headers: Mapping[str, str]
    reply: PlayedReply
    times: int | None = None
    num_used: int = 0
    patterns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_used_up(self) -> bool:
        """Whether it has been given as often as it may."""
        return self.times is not None and self.num_used >= self.times

    def fits(self, path: str, headers: Mapping[str, str], model: str, conversation: Conversation, raw: bytes) -> bool:
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
        return all(self._meets(name, seen[name.removesuffix("_regex")]) for name in self.conditions)

    def _meets(self, name: str, seen: str) -> bool:
        pattern = self.patterns.get(name)
        return seen == self.conditions[name] if pattern is None else pattern.search(seen) is not None


def read_fixtures(value: Any, where: str) -> list[Fixture]:
    """Fixtures from a parsed file or body. Raises OptionError naming the place of what cannot be used."""
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
        made = played_reply(path, status, "application/json", [(0, orjson.dumps(content))])
    elif isinstance(content, list):
        events = [
            (0, b"data: " + (each.encode() if isinstance(each, str) else orjson.dumps(each)) + b"\n\n")
            for each in content
        ]
        made = played_reply(path, status, "text/event-stream; charset=utf-8", events)
    else:
        raise OptionError(f"{where} events: expected a list, got {_shown(content)}")
    return made if not tokens else _with_tokens(made, tokens)


def _with_tokens(made: PlayedReply, tokens: int) -> PlayedReply:
    from dataclasses import replace

    share = tokens / max(1, made.num_output_tokens)
    pieces = [Piece(each.after_us, each.data, round(each.num_tokens * share) or tokens) for each in made.pieces]
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
