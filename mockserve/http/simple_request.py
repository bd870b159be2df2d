"""Parses simple requests. Pure: returns a request, or a status that aiohttp must parse the bytes."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from blis_sim.options.memo import Memo

LARGEST_HEAD_BYTES = 8192
LARGEST_BODY_BYTES = 256 * 1024
"""Size limit of simple requests: a larger body arrives in many parts, and reading dominates its cost."""

MOST_KNOWN_HEADS = 512

END_OF_HEAD = b"\r\n\r\n"
_LINE = re.compile(rb"(GET|POST|HEAD|OPTIONS|PUT|PATCH|DELETE) (/[!-~]*) HTTP/1\.1\r\n")
_FIELD = re.compile(r"^([A-Za-z0-9_-]+): ?([!-~][ -~\t]*)\r\n", re.MULTILINE)
"""A header field. Space behind the value is part of it, as in vLLM's server: a key with such a space is another key."""
_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")
_CLOSES = {"keep-alive": False, "close": True}
_FIRST_VALUE_WINS = frozenset({"content-type", "user-agent"})
"""Fields that some clients repeat; vLLM uses the first value."""
_UNSUPPORTED_HEADERS = frozenset(
    {
        "content-encoding", "expect", "http2-settings", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request."""

    most_head_bytes: int = LARGEST_HEAD_BYTES
    most_fields: int = 128
    most_body_bytes: int = LARGEST_BODY_BYTES


class ParseStatus(Enum):
    """Reason why bytes are no simple request."""

    PART = "the beginning of what may become one"
    OTHER = "something else"


class SimpleHead(NamedTuple):
    """The head of a simple request, and the length of its body."""

    method: str
    path: str
    headers: "CIMultiDictProxy[str]"
    num_body_bytes: int
    closes: bool
    """Whether the connection closes after the reply."""


class SimpleRequest(NamedTuple):
    """One completely received request."""

    head: SimpleHead
    body: bytes
    num_bytes: int
    """Length of the whole request."""


class RequestReader:
    """Parses simple requests. Heads are cached, since many clients send an equal head with every request."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known = Memo[bytes, SimpleHead](MOST_KNOWN_HEADS)

    def first(self, data: bytes) -> SimpleRequest | ParseStatus:
        """Parse the first request in `data`."""
        end = data.find(END_OF_HEAD) + 2
        if end < 2:
            return ParseStatus.PART if len(data) <= self._limits.most_head_bytes else ParseStatus.OTHER
        head = self._head(data[:end])
        if head is None:
            return ParseStatus.OTHER
        begin = end + 2
        num_bytes = begin + head.num_body_bytes
        if len(data) < num_bytes:
            return ParseStatus.PART
        return SimpleRequest(head, data[begin:num_bytes], num_bytes)

    def _head(self, data: bytes) -> SimpleHead | None:
        found = self._known.get(data)
        if found is None:
            found = parse_simple_head(data, self._limits)
            if found is not None:
                self._known.keep(data, found)
        return found


def parse_simple_head(data: bytes, limits: Limits) -> SimpleHead | None:
    """Parse a head without its final empty line; None if it is not simple."""
    line = _LINE.match(data)
    if line is None or len(data) > limits.most_head_bytes:
        return None
    fields = data[line.end() :].decode("latin-1")
    pairs: list[tuple[str, str]] = _FIELD.findall(fields)
    # aiohttp decides about a line that is no field.
    if not len(pairs) == fields.count("\n") <= limits.most_fields:
        return None
    headers = _headers(pairs)
    if headers is None:
        return None
    size, closes = _body_bytes(headers), _CLOSES.get(headers.get(hdrs.CONNECTION, "keep-alive").lower())
    if size is None or size > limits.most_body_bytes or closes is None:
        return None
    method, path = line.groups()
    return SimpleHead(method.decode(), path.decode(), headers, size, closes)


def bytes_for_aiohttp(simple: SimpleRequest) -> bytes:
    """Return the request as bytes for aiohttp's strict parser, with a Host header."""
    head = simple.head
    named = {} if hdrs.HOST in head.headers else {hdrs.HOST: "localhost"}
    fields = [f"{name}: {_kept_by_aiohttp(name, value)}" for name, value in (*named.items(), *head.headers.items())]
    lines = [f"{head.method} {head.path} HTTP/1.1", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1") + simple.body


def _kept_by_aiohttp(name: str, value: str) -> str:
    """Return the value to send to aiohttp, which removes the space that makes a key another one."""
    is_other_key = name.lower() == "authorization" and value != value.rstrip()
    return "" if is_other_key else value


def _headers(pairs: list[tuple[str, str]]) -> "CIMultiDictProxy[str] | None":
    """Return the fields by name; None if a field is unsupported or repeated."""
    once: dict[str, tuple[str, str]] = {}
    for name, value in pairs:
        lower = name.lower()
        if lower in _UNSUPPORTED_HEADERS or (lower in once and lower not in _FIRST_VALUE_WINS):
            return None
        once.setdefault(lower, (name, value))
    return CIMultiDictProxy(CIMultiDict(once.values()))


def _body_bytes(headers: "CIMultiDictProxy[str]") -> int | None:
    """Return the Content-Length; None if it is no plain number."""
    content_length = headers.get(hdrs.CONTENT_LENGTH, "0")
    return int(content_length) if _SMALL_NUMBER.fullmatch(content_length) else None
