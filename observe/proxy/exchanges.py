"""Exchanges of a request and its reply, from the bytes of connections as a proxy sees them, kept as they came."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from observe.clock import Nanos
from observe.errors import ResponseError
from observe.http import Head, HeadCache, ResponseParser
from observe.proxy.decoding import (
    MAX_BODY_BYTES,
    MAX_JSON_PARTS,
    MAX_LINES,
    Decoder,
    MemoryBudget,
    UnreadableBodyError,
    decoded,
    is_parsable,
    num_json_parts,
)
from observe.proxy.facts import RequestMetadata
from observe.proxy.tap import EventKind, Message
from observe.responses.reply import Reply

_MAX_HEAD_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 14
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
            if len(data) - start > _MAX_HEAD_BYTES or not _may_begin(data[start : start + _MAX_LINE_BYTES]):
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
            if len(data) - start > _MAX_LINE_BYTES:
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


@dataclass(slots=True)
class Exchange:
    """A request and its reply, as far as they have come.

    `sent` is when the last byte of the request came. `status` and `message` are those of a row once it has ended;
    `detail` has the server's own words about it.
    """

    upstream: int
    head: RequestHead
    begun: Nanos
    keeps_content: bool
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    sent: Nanos = 0
    body: bytearray = field(default_factory=bytearray)
    num_body_bytes: int = 0
    reply_head: Head | None = None
    reply_fields: list[tuple[str, str]] = field(default_factory=list)
    reply: Reply | None = None
    pieces: list[tuple[Nanos, bytes]] = field(default_factory=list)
    status: str = ""
    message: str = ""
    detail: str = ""
    ended: Nanos = 0
    is_whole: bool = False
    """Whether the reply came to its end."""
    unread: str = ""
    """Why the rest of the reply was not read; empty if it was."""
    facts: RequestMetadata | None = None
    """Facts of a request that generates tokens, from the beginning of its reply on."""
    parser: ResponseParser = field(default_factory=ResponseParser)
    _decoder: Decoder | None = None
    _num_held_bytes: int = 0
    _num_reply_parts: int = 0
    _num_reply_lines: int = 0
    _request_body: bytes | None = None

    def take_body(self, part: bytes) -> None:
        """Take in a piece of the request's body; one that is too long is not kept."""
        self.num_body_bytes += len(part)
        if self.num_body_bytes > MAX_BODY_BYTES or not self._hold(len(part)):
            self.num_body_bytes = max(self.num_body_bytes, MAX_BODY_BYTES + 1)
            self.body.clear()
        else:
            self.body += part

    @property
    def request_body(self) -> bytes:
        """The body of the request without its content coding; empty if it cannot be read."""
        if self._request_body is None:
            try:
                coded = bytes(self.body) if self.num_body_bytes <= MAX_BODY_BYTES else b""
                body = decoded(self.head.header("content-encoding"), coded)
            except UnreadableBodyError:
                body = b""
            self._request_body = body if is_parsable(body) else b""
        return self._request_body

    def take(self, part: bytes, at: Nanos) -> None:
        """Take in a piece of the reply's body."""
        if not part or self.unread:
            return
        try:
            part = part if self._decoder is None else self._decoder.feed(part)
            self._check(part)
            if self.reply is not None and part:
                self.reply.feed(part, at)
        except (UnreadableBodyError, ResponseError) as error:
            self._give_up(str(error))
            return
        if self.keeps_content:
            self.pieces.append((at, part))

    def _check(self, part: bytes) -> None:
        self._num_reply_parts += num_json_parts(part)
        if self._num_reply_parts > MAX_JSON_PARTS:
            raise UnreadableBodyError(f"it has more than {MAX_JSON_PARTS} values")
        self._num_reply_lines += part.count(b"\n")
        if self._num_reply_lines > MAX_LINES:
            raise UnreadableBodyError(f"it has more than {MAX_LINES} lines")
        if not self._hold(len(part)):
            raise UnreadableBodyError("the memory for bodies is full")

    def begin_reply(self, head: Head) -> None:
        """The head of the reply has come."""
        self.reply_head = head
        if self.facts is not None:
            kind = head.headers.get("content-type", "")
            self.reply = Reply(streaming=kind.startswith("text/event-stream"))
            fields = f"HTTP/1.1 {head.status} \r\ncontent-type: {kind}\r\n\r\n"
            self.reply.feed(fields.encode("latin-1", "replace"), self.begun)
            self.reply.first_byte = 0
        try:
            self._decoder = Decoder(head.headers.get("content-encoding", ""))
        except UnreadableBodyError as error:
            self._give_up(str(error))

    def end(self, at: Nanos, *, is_whole: bool, by_client: bool = False, reason: str = "") -> None:
        """The reply is complete, or one side has hung up; the proxy itself where there is a reason."""
        reply = self.reply
        self.ended = at
        self.sent = self.sent or at
        was_done = reply is not None and reply.done and not reply.problem
        self.is_whole = is_whole or was_done
        if reply is not None and is_whole and not self.unread:
            reply.end(at)
        status = 0 if self.reply_head is None else self.reply_head.status
        if self.is_whole and status != 200:
            self.status, self.message = "error", f"HTTP {status}"
            self.detail = "" if reply is None else reply.text
        elif self.is_whole:
            self.status = "ok"
            if reply is not None and reply.problem and not self.unread:
                self._note_problem(reply)
        elif by_client:
            self.status, self.message = "incomplete", "the client closed the connection"
        elif reason:
            self.status, self.message = "incomplete", reason
        else:
            self.status, self.message = "error", "the server closed the connection"

    def free(self) -> None:
        """Give the memory of the bodies back."""
        self.memory.give_back(self._num_held_bytes)
        self._num_held_bytes = 0

    def _note_problem(self, reply: Reply) -> None:
        self.status, self.message = "error", "streaming error" if reply.streaming else "malformed answer"
        if reply.is_server_problem:
            self.detail = reply.problem
        else:
            self.message += f": {reply.problem}"

    def _give_up(self, reason: str) -> None:
        self.unread = reason
        self.pieces.clear()
        if self.reply is not None and not self.reply.streaming:
            self.reply = None

    def _hold(self, num_bytes: int) -> bool:
        if not self.memory.take(num_bytes):
            return False
        self._num_held_bytes += num_bytes
        return True


class Conversation:
    """One connection of a client: its requests in turn, and the replies in the same order."""

    def __init__(
        self,
        upstream: int,
        heads: HeadCache,
        *,
        keeps_content: bool,
        memory: MemoryBudget,
        facts: Callable[[Exchange], RequestMetadata | None],
        ended: Callable[[Exchange], None],
    ) -> None:
        self._upstream = upstream
        self._heads = heads
        self._keeps_content = keeps_content
        self._memory = memory
        self._has_client_ended = False
        self._facts = facts
        self._ended = ended
        self._reader: RequestReader | None = RequestReader()
        self._open: deque[Exchange] = deque()

    def take(self, message: Message) -> None:
        """Take in what happened on the connection."""
        kind, at = message.kind, message.at
        if kind is EventKind.REQUEST:
            self._take_request(message.payload, at)
        elif kind is EventKind.REPLY:
            self._take_reply(message.payload, at)
        elif kind is EventKind.CLIENT_ENDED:
            self._has_client_ended = True
        elif kind is EventKind.CLIENT_GONE:
            self._end_all(at, by_client=True)
        elif kind is EventKind.STOPPED:
            self.close(at)
        elif kind is EventKind.SERVER_GONE:
            self._server_gone(at)
        elif kind is EventKind.DROPPED:
            self._give_up()

    def close(self, at: Nanos) -> None:
        """End what is under way: the proxy has stopped."""
        self._end_all(at, reason="the proxy was stopped")

    def _take_request(self, data: bytes, at: Nanos) -> None:
        if self._reader is None:
            return
        try:
            for part in self._reader.feed(data):
                if part.head is not None:
                    keeps = self._keeps_content and part.head.method == "POST"
                    parser = ResponseParser(self._heads)
                    self._open.append(Exchange(self._upstream, part.head, at, keeps, self._memory, parser=parser))
                elif not self._open:
                    continue
                exchange = self._open[-1]
                exchange.take_body(part.body)
                if part.is_end:
                    exchange.sent = at
        except UnreadableError:
            self._reader = None

    def _take_reply(self, data: bytes, at: Nanos) -> None:
        start = 0
        self._has_client_ended = False  # a client that has only ended its side still reads
        while start < len(data) and self._open:
            exchange = self._open[0]
            parser = exchange.parser
            had_head = exchange.reply_head is not None
            try:
                piece, start = parser.step(data, start)
                head = parser.head
                if head is not None and not had_head:
                    self._begin(exchange, head)
                exchange.take(piece, at)
            except ResponseError:
                self._give_up()
                return
            if head is not None and head.status == 101:
                self._give_up()
            elif parser.complete or (head is not None and exchange.head.method == "HEAD"):
                self._end(at, is_whole=True)

    def _begin(self, exchange: Exchange, head: Head) -> None:
        exchange.facts = self._facts(exchange)
        exchange.begin_reply(head)
        exchange.reply_fields = list(head.headers.items())

    def _server_gone(self, at: Nanos) -> None:
        if self._open and self._open[0].reply_head is not None:
            exchange = self._open[0]
            exchange.parser.end()
            if exchange.parser.complete:
                self._end(at, is_whole=True)
        # A server that closes after its client has done so only follows.
        self._end_all(at, by_client=self._has_client_ended)

    def _end_all(self, at: Nanos, *, by_client: bool = False, reason: str = "") -> None:
        while self._open:
            self._end(at, is_whole=False, by_client=by_client, reason=reason)

    def _end(self, at: Nanos, *, is_whole: bool, by_client: bool = False, reason: str = "") -> None:
        exchange = self._open.popleft()
        exchange.end(at, is_whole=is_whole, by_client=by_client, reason=reason)
        self._ended(exchange)
        exchange.free()

    def _give_up(self) -> None:
        self._reader = None
        while self._open:
            self._open.popleft().free()
