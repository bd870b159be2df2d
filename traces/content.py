"""One recorded exchange of a request and its reply, and the JSON Lines file that holds them: `PREFIX.content.jsonl`."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from traces.append_file import RowWriter, complete_lines, open_with_header
from traces.redaction import Redactor
from traces.text_file import TraceError, json_pieces

VERSION = 1
_FIRST_KEY = "blis_content"
SUFFIX = ".content.jsonl"
_MAX_EVENT_BYTES = 4 << 20
"""Events that are longer are cut, as each piece is joined to those of its event before."""
_SHOWN_AT_ONCE = 1000
_COUNTED_AT_ONCE = 1 << 20
_SPELT_OUT = bytes({*range(32)} - {*b"\b\t\n\f\r"})
"""Characters that take six bytes each in JSON."""
_TYPE = "content-type"
_FIELDS = (":", "event", "id", "retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """A request and its reply. `pieces` are the parts of the reply's body, each with its time after the request.

    The body of an event stream has a piece for each event, any other body one piece. `request_id` is the row of the
    trace, None where the request was not for tokens. `is_complete` is false for a reply that was cut.
    """

    request_id: int | None
    sent_at_us: int
    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    status: int
    reply_headers: Sequence[tuple[str, str]]
    pieces: Sequence[tuple[int, bytes]]
    is_complete: bool
    upstream: str = ""

    @property
    def is_event_stream(self) -> bool:
        """Whether the reply came as server-sent events."""
        return self.reply_header(_TYPE).startswith("text/event-stream")

    @property
    def reply_body(self) -> bytes:
        """The whole body of the reply."""
        return b"".join(data for _, data in self.pieces)

    def in_pieces(self, redactor: Redactor) -> "RecordedExchange":
        """The exchange of a reply that came in these pieces: an event in each of them, or all in one, redacted."""
        if not self.pieces:
            return self
        if self.is_event_stream:
            return replace(self, pieces=_events(self.pieces, redactor))
        return replace(self, pieces=[(self.pieces[-1][0], redactor.data(self.reply_body, self.reply_header(_TYPE)))])

    def reply_header(self, name: str) -> str:
        """The value of a header of the reply, empty where there is none."""
        return next((value for each, value in self.reply_headers if each.lower() == name), "")


def _events(pieces: Sequence[tuple[int, bytes]], redactor: Redactor) -> list[tuple[int, bytes]]:
    """The events of a stream, each with the time of its last byte."""
    # There may be hundreds of thousands of events: none of them is kept twice, and their lines are made anew.
    times: list[int] = []
    events: list[bytes] = []
    rest = b""
    for after_us, piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        events += [event + b"\n\n" for event in whole]
        if len(rest) > _MAX_EVENT_BYTES:
            events.append(rest)
            rest = b""
        times += [after_us] * (len(events) - len(times))
    if rest:
        events.append(rest)
        times.append(pieces[-1][0])
    changed = redactor.changed_events(lambda: _payloads(events))
    number = count()
    for place, event in enumerate(events):
        events[place] = "\n".join(_redacted_lines(event, redactor, changed, number)).encode()
    return list(zip(times, events, strict=True))


def _lines(event: bytes) -> list[str]:
    return event.decode("utf-8", "replace").split("\n")


def _payloads(events: Iterable[bytes]) -> Iterator[str]:
    return (line[5:].strip() for event in events for line in _lines(event) if line.startswith("data:"))


def _redacted_lines(
    event: bytes, redactor: Redactor, changed: Mapping[int, str], number: Iterator[int]
) -> Iterator[str]:
    """Yield the lines of an event; `changed` has the data that redaction changes, by the number of the data line."""
    for line in _lines(event):
        if line.startswith("data:"):
            after = changed.get(next(number))
            yield line if after in (None, line[5:].strip()) else f"data: {after}"
        else:
            yield line if not line else redactor.text(line) if line.startswith(_FIELDS) else ":"


def _shown(pieces: Sequence[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the items of a reply, many at once, but not all: there may be hundreds of thousands."""
    for at in range(0, len(pieces), _SHOWN_AT_ONCE):
        shown = [{"after_us": us, **_data("text", piece)} for us, piece in pieces[at : at + _SHOWN_AT_ONCE]]
        yield (b"," if at else b"") + orjson.dumps(shown)[1:-1]


def line_of(exchange: RecordedExchange) -> list[bytes]:
    """The exchange as it stands in the file, in parts: a reply may be large."""
    before = {
        "request_id": exchange.request_id,
        "sent_at_us": exchange.sent_at_us,
        "method": exchange.method,
        "path": exchange.path,
        "upstream": exchange.upstream,
        "headers": exchange.headers,
        **_data("body", exchange.body),
        "status": exchange.status,
        "reply_headers": exchange.reply_headers,
    }
    after = {"complete": exchange.is_complete}
    *most, last = json_pieces(before)
    start = [*most, last[:-1] + b',"reply":[']
    return [*start, *_shown(exchange.pieces), b"]," + orjson.dumps(after)[1:] + b"\n"]


def _data(name: str, data: bytes) -> dict[str, str]:
    """A member with these bytes: as text where they are such and JSON does not make it larger than base64 would."""
    num_short = sum(
        len(data[at : at + _COUNTED_AT_ONCE].translate(None, _SPELT_OUT))
        for at in range(0, len(data), _COUNTED_AT_ONCE)
    )
    if num_short * 10 >= len(data) * 9:
        with suppress(UnicodeDecodeError):
            return {name: data.decode()}
    return {f"{name}_base64": base64.b64encode(data).decode()}


class ContentWriter(RowWriter):
    """Appends exchanges to a new file; with `kept` it takes the place of a file that has these lines."""

    def __init__(self, path: Path, redactor: Redactor, kept: Sequence[str] | None = None) -> None:
        first = orjson.dumps({_FIRST_KEY: VERSION, "redact": redactor.shown_patterns}).decode()
        self._file = open_with_header(path, first, kept)

    def write_lines(self, lines: Iterable[Iterable[bytes]]) -> None:
        """Append exchanges that are lines already, in parts; all of them, or none if there is no room."""
        self._file.write_parts(part for line in lines for part in line)


def complete_content_lines(path: Path) -> list[str]:
    """The whole lines of a file whose writer may have been killed, without the first one. Raises TraceError."""
    return complete_lines(path)[1:]


@dataclass(frozen=True, slots=True)
class ContentRecording:
    """The exchanges of one file in its order, and the patterns that were redacted in it."""

    exchanges: list[RecordedExchange]
    redacted: tuple[str, ...]


def read_content(path: Path) -> ContentRecording:
    """Read a file of exchanges; a last line that was cut is left out. Raises TraceError naming line and member."""
    lines = complete_lines(path)
    first = _parsed(path, 1, lines[0]) if lines else {}
    if first.get(_FIRST_KEY) != VERSION:
        raise TraceError(f'{path} line 1: expected {{"{_FIRST_KEY}":{VERSION}, ...}}, the start of recorded contents')
    redacted = first.get("redact", [])
    if not isinstance(redacted, list) or not all(isinstance(each, str) for each in redacted):
        raise TraceError(f"{path} line 1 redact: expected a list of patterns, got {redacted!r}")
    exchanges = [exchange_of_line(path, number, line) for number, line in enumerate(lines[1:], 2)]
    return ContentRecording(exchanges, tuple(redacted))


def exchange_of_line(path: Path, number: int, line: str) -> RecordedExchange:
    """Return the exchange of a line of a file, other than its first. Raises TraceError naming line and member."""
    return _exchange(path, number, _parsed(path, number, line))


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path} line {number}: expected a JSON object ({error})") from error
    if not isinstance(value, dict):
        raise TraceError(f"{path} line {number}: expected a JSON object, got {line[:60]!r}")
    return value


def _exchange(path: Path, number: int, members: Mapping[str, Any]) -> RecordedExchange:
    def get(name: str, kind: type, default: Any) -> Any:
        value = members.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise TraceError(f"{path} line {number} {name}: expected {kind.__name__}, got {value!r:.60}")
        return value

    request_id = members.get("request_id")
    if request_id is not None:
        get("request_id", int, 0)
    return RecordedExchange(
        request_id=request_id,
        sent_at_us=get("sent_at_us", int, 0),
        method=get("method", str, "POST"),
        path=get("path", str, ""),
        upstream=get("upstream", str, ""),
        headers=_pairs(path, number, "headers", get("headers", list, [])),
        body=_bytes(path, number, "body", members),
        status=get("status", int, 200),
        reply_headers=_pairs(path, number, "reply_headers", get("reply_headers", list, [])),
        pieces=_pieces(path, number, get("reply", list, [])),
        is_complete=get("complete", bool, True),
    )


def _pairs(path: Path, number: int, name: str, value: list[Any]) -> list[tuple[str, str]]:
    if not all(
        isinstance(each, list) and len(each) == 2 and all(isinstance(part, str) for part in each) for each in value
    ):
        raise TraceError(f"{path} line {number} {name}: expected pairs of texts, got {value!r:.60}")
    return [(first, second) for first, second in value]


def _pieces(path: Path, number: int, value: list[Any]) -> list[tuple[int, bytes]]:
    pieces = []
    for each in value:
        if not isinstance(each, dict) or type(each.get("after_us")) is not int:
            raise TraceError(f"{path} line {number} reply: expected after_us and text in each piece, got {each!r:.60}")
        pieces.append((max(0, each["after_us"]), _bytes(path, number, "text", each)))
    return pieces


def _bytes(path: Path, number: int, name: str, members: Mapping[str, Any]) -> bytes:
    value = members.get(name, members.get(f"{name}_base64", ""))
    try:
        if not isinstance(value, str):
            raise TypeError(f"got {value!r:.60}")
        return value.encode() if name in members else base64.b64decode(value, validate=True)
    except (ValueError, TypeError) as error:
        raise TraceError(f"{path} line {number} {name}: expected a text ({error})") from error
