"""Requests as a proxy sees them: bytes in; heads, bodies and ends out, with every byte kept as it came."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_MOST_HEAD_BYTES = 1 << 18
_MOST_LINE_BYTES = 1 << 14
_LINE_START = re.compile(rb"\r|[!#-'*+.\-0-9A-Z^_`a-z|~]*( [!-~\x80-\xff]*( [HTP/.01]{0,8}\r?)?)?")
_REQUEST_LINE = re.compile(rb"([!#-'*+.\-0-9A-Z^_`a-z|~]+) ([!-~\x80-\xff]+) HTTP/1\.[01]")


class UnreadableError(Exception):
    """The bytes are no HTTP/1.1 request, or one whose end cannot be found for sure."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first line and the headers of a request, as text in Latin-1."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str:
        """The value of a header by its name in lower case, empty where there is none."""
        return next((value for each, value in self.headers if each.lower() == name), "")


@dataclass(slots=True)
class Part:
    """A piece of a request: `raw` as it came. The first has the head, `body` is what it adds to the body, and the last
    is the end."""

    raw: bytes
    head: RequestHead | None = None
    body: bytes = b""
    is_end: bool = False


class _State(Enum):
    HEAD = auto()
    SIZED_BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()


class RequestReader:
    """Takes the requests of one connection apart, fed in pieces cut anywhere.

    After UnreadableError, `rest` has the bytes that are not in a part yet, and nothing more can be fed.
    """

    __slots__ = ("_left", "_state", "rest")

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._left = 0
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[Part]:
        """The parts that these bytes complete. Raises UnreadableError."""
        data = self.rest + data if self.rest else data
        self.rest = data
        start = 0
        while start < len(data):
            part, end = self._step(data, start)
            self.rest = data[end:]
            if part is None:
                return
            start = end
            yield part

    def _step(self, data: bytes, start: int) -> tuple[Part | None, int]:
        if self._state is _State.HEAD:
            return self._take_head(data, start)
        if self._state in (_State.SIZED_BODY, _State.CHUNK):
            piece = data[start : start + self._left]
            self._left -= len(piece)
            is_end = self._state is _State.SIZED_BODY and not self._left
            if not self._left:
                self._state = _State.HEAD if is_end else _State.CHUNK_END
            return Part(piece, body=piece, is_end=is_end), start + len(piece)
        return self._take_line(data, start)

    def _take_head(self, data: bytes, start: int) -> tuple[Part | None, int]:
        if data.startswith(b"\r\n", start):  # empty lines before a request are allowed
            return Part(data[start : start + 2]), start + 2
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start > _MOST_HEAD_BYTES or not _may_begin(data[start : start + _MOST_LINE_BYTES]):
                raise UnreadableError
            return None, start
        raw = data[start : end + 4]
        head = _parsed(raw)
        self._left, is_chunked = _length(head)
        self._state = _State.CHUNK_SIZE if is_chunked else _State.SIZED_BODY if self._left else _State.HEAD
        return Part(raw, head=head, is_end=self._state is _State.HEAD), end + 4

    def _take_line(self, data: bytes, start: int) -> tuple[Part | None, int]:
        end = data.find(b"\r\n", start)
        if end < 0:
            if len(data) - start > _MOST_LINE_BYTES:
                raise UnreadableError
            return None, start
        line, raw = data[start:end], data[start : end + 2]
        is_end = False
        if self._state is _State.CHUNK_SIZE:
            size = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise UnreadableError
            self._left = int(size, 16)
            self._state = _State.CHUNK if self._left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise UnreadableError
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.HEAD
            is_end = True
        return Part(raw, is_end=is_end), end + 2


def _may_begin(data: bytes) -> bool:
    """Whether bytes without the end of a head can be the beginning of one."""
    first, newline, _ = data.partition(b"\n")
    if newline:
        return _REQUEST_LINE.fullmatch(first.rstrip(b"\r")) is not None
    return _LINE_START.fullmatch(first) is not None


def _parsed(raw: bytes) -> RequestHead:
    first, *lines = raw[:-4].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise UnreadableError
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise UnreadableError
        headers.append((name.decode("latin-1"), value.strip().decode("latin-1")))
    return RequestHead(found[1].decode("latin-1"), found[2].decode("latin-1"), tuple(headers))


def _length(head: RequestHead) -> tuple[int, bool]:
    """The length of the body, and whether it comes in chunks. Raises UnreadableError where servers may differ."""
    lengths = {value for name, value in head.headers if name.lower() == "content-length"}
    encodings = [value.lower() for name, value in head.headers if name.lower() == "transfer-encoding"]
    if head.method == "CONNECT" or head.header("upgrade").lower() == "websocket" or len(lengths) > 1:
        raise UnreadableError
    if encodings:
        if lengths or encodings != ["chunked"]:
            raise UnreadableError
        return 0, True
    length = next(iter(lengths), "0")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise UnreadableError
    return int(length), False


def with_host(raw: bytes, authority: str, prefix: str) -> bytes:
    """The head of a request for the server behind a proxy: its host, and the path in front of its routes.

    Every other byte stays as it is. A target that names a server, as for a forward proxy, stays, too.
    """
    if prefix:
        method, _, rest = raw.partition(b" ")
        raw = method + b" " + prefix.encode() + rest if rest.startswith(b"/") else raw
    first, end, fields = raw.partition(b"\r\n")
    return first + end + _HOST.sub(lambda found: found[1] + authority.encode(), fields, count=1)


_HOST = re.compile(rb"^([Hh][Oo][Ss][Tt]:[ \t]*)[^\r\n]*", re.MULTILINE)
