"""From the messages about connections to exchanges of a request and its reply."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from observe.clock import Nanos
from observe.errors import ResponseError
from observe.http.message import RequestHead, RequestReader, UnreadableError
from observe.http.response import Head, KnownHeads, ResponseParser
from observe.proxy.facts import RequestFacts
from observe.proxy.tap import Kind, Message
from observe.responses.reply import Reply

_MOST_BODY_BYTES = 64 << 20
_GZIP_OR_ZLIB = 47
"""The window bits that make zlib read both."""


@dataclass(slots=True)
class Exchange:
    """A request and its reply, as far as they have come.

    `sent` is when the last byte of the request came. `status` and `message` are those of a row once it has ended.
    """

    upstream: int
    head: RequestHead
    begun: Nanos
    keeps_content: bool
    sent: Nanos = 0
    body: bytearray = field(default_factory=bytearray)
    reply_head: Head | None = None
    reply_fields: list[tuple[str, str]] = field(default_factory=list)
    reply: Reply | None = None
    pieces: list[tuple[Nanos, bytes]] = field(default_factory=list)
    status: str = ""
    message: str = ""
    ended: Nanos = 0
    is_whole: bool = False
    """Whether the reply came to its end."""
    facts: RequestFacts | None = None
    """Facts of the request if it asks for tokens, from the beginning of its reply on."""
    parser: ResponseParser = field(default_factory=ResponseParser)
    _inflating: "zlib._Decompress | None" = None
    _num_reply_bytes: int = 0

    def take(self, part: bytes, at: Nanos) -> None:
        """Take in a piece of the reply's body."""
        if not part:
            return
        if self._inflating is not None:
            try:
                part = self._inflating.decompress(part, _MOST_BODY_BYTES)
            except zlib.error:
                part = b""
        if self.reply is not None and part:
            self.reply.feed(part, at)
        self._num_reply_bytes += len(part)
        if self.keeps_content and self._num_reply_bytes <= _MOST_BODY_BYTES:
            self.pieces.append((at, part))

    def begin_reply(self, head: Head) -> None:
        """The head of the reply has come."""
        self.reply_head = head
        encoding = head.headers.get("content-encoding", "").lower()
        if encoding in ("gzip", "deflate", "x-gzip"):
            self._inflating = zlib.decompressobj(_GZIP_OR_ZLIB)
        if self.facts is not None:
            kind = head.headers.get("content-type", "")
            self.reply = Reply(streaming=kind.startswith("text/event-stream"))
            fields = f"HTTP/1.1 {head.status} \r\ncontent-type: {kind}\r\n\r\n"
            self.reply.feed(fields.encode("latin-1", "replace"), self.begun)
            self.reply.first_byte = 0

    def end(self, at: Nanos, *, is_whole: bool, by_client: bool = False, reason: str = "") -> None:
        """The reply is complete, or one side has hung up."""
        reply = self.reply
        self.ended = at
        self.sent = self.sent or at
        was_done = reply is not None and reply.done and not reply.problem
        self.is_whole = is_whole or was_done
        if reply is not None and is_whole:
            reply.end(at)
        status = 0 if self.reply_head is None else self.reply_head.status
        if self.is_whole and status != 200:
            text = "" if reply is None else reply.text
            self.status, self.message = "error", f"HTTP {status}: {text}"
        elif self.is_whole:
            problem = "" if reply is None else reply.problem
            self.status, self.message = ("error", f"streaming error: {problem}") if problem else ("ok", "")
        elif by_client:
            self.status, self.message = "incomplete", "the client closed the connection"
        else:
            self.status, self.message = "error", reason or "the server closed the connection"


class Conversation:
    """One connection of a client: its requests in turn, and the replies in the same order."""

    def __init__(
        self,
        upstream: int,
        heads: KnownHeads,
        *,
        keeps_content: bool,
        facts: Callable[[Exchange], RequestFacts | None],
        ended: Callable[[Exchange], None],
    ) -> None:
        self._upstream = upstream
        self._heads = heads
        self._keeps_content = keeps_content
        self._facts = facts
        self._ended = ended
        self._reader: RequestReader | None = RequestReader()
        self._open: deque[Exchange] = deque()

    def take(self, message: Message) -> None:
        """Take in what happened on the connection."""
        kind, at = message.kind, message.at
        if kind is Kind.REQUEST:
            self._take_request(message.payload, at)
        elif kind is Kind.REPLY:
            self._take_reply(message.payload, at)
        elif kind is Kind.CLIENT_GONE:
            self._end_all(at, by_client=True)
        elif kind is Kind.SERVER_GONE:
            self._server_gone(at)
        elif kind is Kind.NOT_SEEN:
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
                    self._open.append(Exchange(self._upstream, part.head, at, keeps, parser=parser))
                elif not self._open:
                    continue
                exchange = self._open[-1]
                if len(exchange.body) + len(part.body) <= _MOST_BODY_BYTES:
                    exchange.body += part.body
                if part.is_end:
                    exchange.sent = at
        except UnreadableError:
            self._reader = None

    def _take_reply(self, data: bytes, at: Nanos) -> None:
        start = 0
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
                self._open.popleft()
                exchange.end(at, is_whole=True)
                self._ended(exchange)

    def _begin(self, exchange: Exchange, head: Head) -> None:
        exchange.facts = self._facts(exchange)
        exchange.begin_reply(head)
        exchange.reply_fields = list(head.headers.items())

    def _server_gone(self, at: Nanos) -> None:
        if self._open and self._open[0].reply_head is not None:
            exchange = self._open[0]
            exchange.parser.end()
            if exchange.parser.complete:
                self._open.popleft()
                exchange.end(at, is_whole=True)
                self._ended(exchange)
        self._end_all(at)

    def _end_all(self, at: Nanos, *, by_client: bool = False, reason: str = "") -> None:
        while self._open:
            exchange = self._open.popleft()
            exchange.end(at, is_whole=False, by_client=by_client, reason=reason)
            self._ended(exchange)

    def _give_up(self) -> None:
        self._reader = None
        self._open.clear()
