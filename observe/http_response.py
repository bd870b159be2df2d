"""The receiving half of HTTP/1.1, without I/O: bytes in, status and body out."""

from enum import Enum, auto

from observe.errors import ResponseError

_MAX_HEAD_BYTES = 65536
_NO_BODY = frozenset({204, 304})


class _Part(Enum):
    HEAD = auto()
    SIZED_BODY = auto()
    BODY_UNTIL_EOF = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    COMPLETE = auto()


class ResponseParser:
    """One response, fed in pieces cut anywhere. Interim (1xx) responses are skipped."""

    __slots__ = ("_left", "_part", "_rest", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = True
        self._part = _Part.HEAD
        self._rest = b""
        self._left = 0

    @property
    def complete(self) -> bool:
        """Whether the last byte of the response has been fed."""
        return self._part is _Part.COMPLETE

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body among these. Raises ResponseError."""
        if self._part is _Part.HEAD:
            data = self._feed_head(data)
        if self._part is _Part.SIZED_BODY:
            return self._feed_sized(data)
        if self._part is _Part.BODY_UNTIL_EOF:
            return data
        if self._part is _Part.HEAD:
            return b""
        return self._feed_chunked(data)

    def end(self) -> None:
        """The connection was closed: the end of a body that has no other."""
        if self._part is _Part.BODY_UNTIL_EOF:
            self._part = _Part.COMPLETE

    def _feed_head(self, data: bytes) -> bytes:
        """Take the head off and give back what follows it, nothing while it is incomplete."""
        data = self._rest + data
        self._rest = b""
        while self._part is _Part.HEAD:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD_BYTES:
                    raise ResponseError(f"no end of the headers within {_MAX_HEAD_BYTES} bytes")
                self._rest = data
                return b""
            self._parse_head(data[:end])
            data = data[end + 4 :]
        return data

    def _parse_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ResponseError(f"expected a status line of HTTP/1.1, got {first[:60]!r}")
        status = int(rest[:3])
        if 100 <= status < 200 and status != 101:
            return
        self.status = status
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        self._choose_body()

    def _choose_body(self) -> None:
        length = self.headers.get("content-length")
        if self.status in _NO_BODY:
            self._part = _Part.COMPLETE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._part = _Part.CHUNK_SIZE
        elif length is not None:
            if not length.isdecimal():
                raise ResponseError(f"content-length must be a number, got {length[:60]!r}")
            self._left = int(length)
            self._part = _Part.SIZED_BODY if self._left else _Part.COMPLETE
        else:
            self.keep_alive = False
            self._part = _Part.BODY_UNTIL_EOF

    def _feed_sized(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        if not self._left:
            self._part = _Part.COMPLETE
        return body

    def _feed_chunked(self, data: bytes) -> bytes:
        data = self._rest + data
        body = []
        at = 0
        while self._part is not _Part.COMPLETE:
            if self._part is _Part.CHUNK:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._part = _Part.CHUNK_END
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if end == at and self._part is _Part.CHUNK_END:
                self._part = _Part.CHUNK_SIZE
            else:
                self._take_line(data[at:end])
            at = end + 2
        self._rest = data[at:]
        return b"".join(body)

    def _take_line(self, line: bytes) -> None:
        """A line between the chunks: the end of one, the size of the next, or a trailer after the last."""
        if self._part is _Part.CHUNK_END:
            if line:
                raise ResponseError(f"expected the end of a chunk, got {line[:60]!r}")
            self._part = _Part.CHUNK_SIZE
        elif self._part is _Part.CHUNK_SIZE:
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise ResponseError(f"expected the size of a chunk, got {line[:60]!r}") from None
            self._part = _Part.CHUNK if self._left else _Part.TRAILERS
        elif not line:
            self._part = _Part.COMPLETE
