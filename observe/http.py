"""HTTP/1.1 without I/O: the address of a server, trust in certificates, bytes of requests, parts of responses."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import urlsplit

from blis_sim.options.memo import Memo
from observe.errors import ObserveError, ResponseError


def tls_context(ca_file: str | None, *, insecure: bool) -> ssl.SSLContext:
    """The settings of TLS: those of the system, those of a PEM file, or none at all. Raises ObserveError."""
    if insecure and ca_file is not None:
        raise ObserveError("--insecure and --ca-file exclude each other")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = "no certificates in PEM form" if isinstance(error, ssl.SSLError) else (error.strerror or error)
        raise ObserveError(f"--ca-file {ca_file}: {reason}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


SEND_TIME_HEADER = {"x-request-start": "t=0000000000000000"}
"""Header with the instant of sending, as proxies set it. `with_send_time` fills in the value at the last moment."""
_NO_STAMP = b"t=0000000000000000"

_AFTER_AUTHORITY = re.compile(r"[/?#]")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(?![^/])")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Server:
    """Address of the API. `prefix` is the path before `/v1/...`, without a slash at its end."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def url(self) -> str:
        """The address as messages show it."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """The host header: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _DEFAULT_PORTS["https" if self.tls else "http"]
        return host if usual else f"{host}:{self.port}"


def parse_server(url: str, label: str = "--url") -> Server:
    """The server behind a base URL, with or without `/v1` at its end. Raises ObserveError, naming it by `label`.

    A host with a port alone, such as localhost:8000, is one of http.
    """
    if "@" in _AFTER_AUTHORITY.split(url.partition("://")[2] or url, maxsplit=1)[0]:
        raise ObserveError(f"{label} must not carry a user name or password, give --api-key")
    expected = f"{label} must be like http://host:port, got {url.partition('?')[0]!r}"
    try:
        parts = urlsplit(f"http://{url}" if _HOST_AND_PORT.match(url) else url)
        port = parts.port
    except ValueError as error:
        raise ObserveError(f"{expected} ({error})") from error
    printable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.query or parts.fragment or not printable:
        raise ObserveError(expected)
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Server(parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "https", prefix)


def get_bytes(server: Server, path: str, headers: Mapping[str, str]) -> bytes:
    """A GET request, complete."""
    return _head(server, "GET", path, headers) + b"\r\n"


def post_bytes(server: Server, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A POST request of a JSON body, complete."""
    return b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        post_head(server, path, headers),
        len(body),
        body,
    )


def post_head(server: Server, path: str, headers: Mapping[str, str]) -> bytes:
    """Return the first bytes of POST requests with these headers, for `post_bytes_of`."""
    return _head(server, "POST", path, headers)


def post_bytes_of(head: bytes, x_request_id: str, body: bytes, traceparent: str = "") -> bytes:
    """The request of `post_bytes` that begins like this and has this identity, and perhaps this trace context, as its
    last headers."""
    if traceparent:
        head = b"%straceparent: %s\r\n" % (head, traceparent.encode("latin-1"))
    return b"%sx-request-id: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        head,
        x_request_id.encode("latin-1"),
        len(body),
        body,
    )


def addressed_to(server: Server, request: bytes, made_for: Server) -> bytes:
    """A request that was made for one server, as another one gets it."""
    if server is made_for:
        return request
    line, _, rest = request.split(b"\r\n", 2)
    line = line.replace(b" " + made_for.prefix.encode(), b" " + server.prefix.encode(), 1)
    return b"%s\r\nhost: %s\r\n%s" % (line, server.authority.encode("latin-1"), rest)


def with_send_time(request: bytes, sent_at_us: int) -> bytes:
    """`request` with the instant at which it is sent, in Unix microseconds, in its header for that, if it has one."""
    return request.replace(_NO_STAMP, b"t=%016d" % sent_at_us, 1)


def without_value(header: str) -> str:
    """The name of a header written with a colon or a blank, for messages: its value may be secret."""
    return re.split(r"[:\s]", header, maxsplit=1)[0]


def check_header(label: str, name: str, value: str) -> None:
    """Raise ObserveError unless this can be sent as a header; `label` is the flag it came from."""
    if not name or not all(each.isascii() and (each.isalnum() or each in "!#$%&'*+-.^_`|~") for each in name):
        raise ObserveError(f"{label} must be NAME=VALUE with a header name, got the name {name!r}")
    if not all(each == "\t" or " " <= each <= "~" for each in value):
        raise ObserveError(f"{label} must have a value of printable ASCII characters")


def _head(server: Server, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {server.prefix}{path} HTTP/1.1", f"host: {server.authority}"]
    lines += ["user-agent: blis-observe", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, ""]).encode("latin-1")


_NO_BODY = frozenset({204, 304})
_MAX_CACHED_HEADS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A parsed head; names of headers are in lower case.

    The body is chunked, or `length` bytes long, or lasts until the connection is closed where that is None.
    """

    status: int
    headers: Mapping[str, str]
    keep_alive: bool
    chunked: bool
    length: int | None


def parse_head(head: bytes) -> Head:
    """Parse a head without the empty line at its end. Raises ResponseError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ResponseError(f"expected a status line of HTTP/1.1, got {first[:60]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    status = int(rest[:3])
    chunked = status not in _NO_BODY and "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _length(status, headers)
    connection = headers.get("connection", "").lower()
    stays_open = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
    return Head(
        status=status,
        headers=headers,
        keep_alive=stays_open and (chunked or length is not None),
        chunked=chunked,
        length=length,
    )


class HeadCache:
    """Cache of parsed heads: the heads of one server differ little, mostly in the second of their date."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads = Memo[bytes, Head](_MAX_CACHED_HEADS)

    def parse(self, head: bytes) -> Head:
        """Parse a head like `parse_head`, with a cache. Raises ResponseError."""
        known = self._heads.get(head)
        if known is None:
            known = self._heads.keep(head, parse_head(head))
        return known


def _length(status: int, headers: Mapping[str, str]) -> int | None:
    if status in _NO_BODY:
        return 0
    length = headers.get("content-length")
    if length is not None and not (length.isdecimal() and len(length) < 20):
        raise ResponseError(f"content-length must be a number, got {length[:60]!r}")
    return None if length is None else int(length)


_MAX_HEAD_BYTES = 65536


class _ParserState(Enum):
    HEAD = auto()
    SIZED_BODY = auto()
    BODY_UNTIL_EOF = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    COMPLETE = auto()


_COMPLETE = _ParserState.COMPLETE
_CHUNK_SIZE = _ParserState.CHUNK_SIZE
_CHUNK = _ParserState.CHUNK


class ResponseParser:
    """One response, fed in pieces cut anywhere. Interim (1xx) responses are skipped."""

    __slots__ = ("_heads", "_left", "_rest", "_state", "head")

    def __init__(self, heads: HeadCache | None = None) -> None:
        self.head: Head | None = None
        self._heads = heads or HeadCache()
        self._state = _ParserState.HEAD
        self._rest = b""
        self._left = 0

    @property
    def complete(self) -> bool:
        """Whether the last byte of the response has been fed."""
        return self._state is _COMPLETE

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte is the first of a chunk, of its size."""
        return self._state is _CHUNK_SIZE and not self._rest

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body among these. Raises ResponseError."""
        pieces = []
        start = 0
        while start < len(data):
            piece, start = self.step(data, start)
            pieces.append(piece)
        return b"".join(pieces)

    def step(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Feed `data` from this place to the end of a chunk at most: bytes of the body, and the place to go on from.

        Raises ResponseError.
        """
        if self._state is _CHUNK:
            return self._take_chunk(data, start)
        if self._state is _ParserState.SIZED_BODY:
            body = data[start : start + self._left]
            self._left -= len(body)
            if not self._left:
                self._state = _COMPLETE
            return body, start + len(body)
        if self._state is _ParserState.BODY_UNTIL_EOF:
            return data[start:], len(data)
        if self._state is _COMPLETE:
            return b"", len(data)
        if self._rest:
            num_before = len(self._rest)
            data, self._rest = self._rest + data[start:], b""
            body, end = self._step_over_text(data, 0)
            return body, start + end - num_before
        return self._step_over_text(data, start)

    def end(self) -> None:
        """The connection was closed: the end of a body that has no other."""
        if self._state is _ParserState.BODY_UNTIL_EOF:
            self._state = _COMPLETE

    def end_chunks(self) -> None:
        """End the response after its last chunk, with no trailers."""
        self._state = _COMPLETE

    def _step_over_text(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Take in the head, or a line around the chunks; what is incomplete is kept for the next time."""
        if self._state is _ParserState.HEAD:
            return b"", self._take_head(data, start)
        end = data.find(b"\r\n", start)
        if end < 0:
            self._rest = data[start:]
            return b"", len(data)
        if self._state is not _CHUNK_SIZE:
            self._take_line(data[start:end])
            return b"", end + 2
        self._take_size(data[start:end])
        if self._left:
            return self._take_chunk(data, end + 2)
        if data.startswith(b"\r\n", end + 2):
            self._state = _COMPLETE
        return b"", end + 2

    def _take_head(self, data: bytes, start: int) -> int:
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start > _MAX_HEAD_BYTES:
                raise ResponseError(f"no end of the headers within {_MAX_HEAD_BYTES} bytes")
            self._rest = data[start:]
            return len(data)
        head = self._heads.parse(data[start:end])
        if 100 <= head.status < 200 and head.status != 101:  # the real response is still to come
            return end + 4
        self.head = head
        if head.chunked:
            self._state = _CHUNK_SIZE
        elif head.length is None:
            self._state = _ParserState.BODY_UNTIL_EOF
        else:
            self._left = head.length
            self._state = _ParserState.SIZED_BODY if head.length else _COMPLETE
        return end + 4

    def _take_size(self, line: bytes) -> None:
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ResponseError(f"expected the size of a chunk, got {line[:60]!r}") from None
        if self._left < 0:
            raise ResponseError(f"expected the size of a chunk, got {line[:60]!r}")
        self._state = _CHUNK if self._left else _ParserState.TRAILERS

    def _take_chunk(self, data: bytes, start: int) -> tuple[bytes, int]:
        end = start + self._left
        if data.startswith(b"\r\n", end):
            self._state = _CHUNK_SIZE
            return data[start:end], end + 2
        piece = data[start:end]
        self._left -= len(piece)
        if not self._left:
            self._state = _ParserState.CHUNK_END
        return piece, start + len(piece)

    def _take_line(self, line: bytes) -> None:
        """A line behind a chunk, which is empty, or behind the last one: a trailer, or the end."""
        if self._state is _ParserState.CHUNK_END:
            if line:
                raise ResponseError(f"expected the end of a chunk, got {line[:60]!r}")
            self._state = _CHUNK_SIZE
        elif not line:
            self._state = _COMPLETE
