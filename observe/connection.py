"""One TCP connection to a resolved address, which carries one exchange of request and answer at a time."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import perf_counter_ns
from typing import TypeAlias, cast

from observe.clock import Clock, Nanos
from observe.errors import ResponseError
from observe.http import HeadCache, with_send_time
from observe.redacting import without_echoes
from observe.responses.reply import Reply

Address: TypeAlias = tuple[str, int]


async def addresses_of(host: str, port: int) -> Sequence[Address]:
    """All addresses of a host, in the order to try them. Raises OSError for a name that has none."""
    with suppress(socket.gaierror, UnicodeError):
        return _resolved(host, port, socket.AI_NUMERICHOST)
    found: asyncio.Future[Sequence[Address]] = asyncio.get_running_loop().create_future()
    try:
        # A name server may take long to answer, and an interrupted program must not wait for it.
        Thread(target=_resolve, args=(host, port, found), name="resolving", daemon=True).start()
    except RuntimeError as error:  # the system starts no further thread
        raise MemoryError(str(error)) from None
    return await found


def _resolve(host: str, port: int, found: "asyncio.Future[Sequence[Address]]") -> None:
    addresses: Sequence[Address] = ()
    failure: OSError | None = None
    try:
        addresses = _resolved(host, port, 0)
    except OSError as error:
        failure = error
    except UnicodeError:  # no name of a host
        failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with suppress(RuntimeError):  # the loop has ended
        found.get_loop().call_soon_threadsafe(_settle, found, addresses, failure)


def _settle(found: "asyncio.Future[Sequence[Address]]", addresses: Sequence[Address], failure: OSError | None) -> None:
    if found.done():
        return
    if failure is None:
        found.set_result(addresses)
    else:
        found.set_exception(failure)


def _resolved(host: str, port: int, flags: int) -> Sequence[Address]:
    # Only names that are not ASCII need the codec `idna`, whose import takes time.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((str(address[0]), int(address[1])) for *_, address in found))


CANCELLED = "cancelled"
"""The kind and the message of a request that the end of the run cut while it was under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a request.

    `status` is ok, error or timeout; `kind` names failures for counting (`http_500`, `timeout`, `stream`,
    `connection`, `malformed`, `cancelled`). `sent` is when it was tried if it could not be sent.
    """

    status: str
    kind: str
    error_message: str
    sent: Nanos
    ended: Nanos
    reply: Reply

    @property
    def last_chunk(self) -> Nanos:
        """Arrival time of the last data event, or of the last byte of a reply that is no stream."""
        return self.reply.chunk_times[-1] if self.reply.chunk_times else 0

    @property
    def num_chunks(self) -> int:
        """Data events of a stream; 1 for an answer that came whole."""
        return len(self.reply.chunk_times) if self.reply.streaming else len(self.reply.chunk_times[:1])

    @property
    def output_tokens(self) -> int:
        """Tokens by the server's count, else the events that carried any."""
        counted = self.reply.completion_tokens
        return sum(self.reply.carries_tokens) if counted is None else counted

    @property
    def token_times(self) -> list[Nanos]:
        """The instants of the events that carried tokens, without the role and usage events."""
        return [at for at, carries in zip(self.reply.chunk_times, self.reply.carries_tokens, strict=False) if carries]


class Exchange:
    """A request under way. `on_settled` is called once, when it has an outcome.

    The request may take `timeout_s`. With `heads` its head is looked up among those that other replies had.
    """

    __slots__ = ("finished", "num_sends", "on_settled", "outcome", "reply", "request", "sent", "timeout_s")

    def __init__(
        self,
        request: bytes,
        *,
        streaming: bool,
        finished: Callable[[Outcome], None],
        on_settled: Callable[["Exchange", Outcome], None],
        timeout_s: float,
        heads: HeadCache | None = None,
    ) -> None:
        self.request = request
        self.reply = Reply(streaming=streaming, heads=heads)
        self.timeout_s = timeout_s
        self.finished = finished
        self.on_settled = on_settled
        self.sent: Nanos = 0
        self.num_sends = 0
        self.outcome: Outcome | None = None

    def on_reply_complete(self, at: Nanos) -> None:
        """The whole answer has come."""
        reply = self.reply
        if reply.status_code != 200:
            code = reply.status_code
            self.end("error", f"http_{code}", f"HTTP {code}: {reply.text}", at)
        elif reply.problem:
            self.end("error", *_of_problem(reply), at)
        else:
            self.end("ok", "ok", "", at)

    def on_connection_lost(self, reason: str, at: Nanos) -> None:
        """The connection is gone before the HTTP message was complete."""
        if self.reply.done and not self.reply.problem:
            self.end("ok", "ok", "", at)
        elif self.reply.chunk_times:
            self.end("error", "stream", f"streaming error: {reason}", at)
        else:
            self.end("error", "connection", f"HTTP error: {reason}", at)

    def end(self, status: str, kind: str, message: str, at: Nanos) -> None:
        """Settle the outcome; the first call counts."""
        if self.outcome is not None:
            return
        if message:
            message = without_echoes(message, self.request)
        self.outcome = Outcome(
            status=status, kind=kind, error_message=message, sent=self.sent, ended=at, reply=self.reply
        )
        self.on_settled(self, self.outcome)


def _of_problem(reply: Reply) -> tuple[str, str]:
    if reply.streaming and reply.chunk_times:
        return "stream", f"streaming error: {reply.problem}"
    return "malformed", f"malformed answer: {reply.problem}"


class Connection(asyncio.Protocol):
    """Writes a request and feeds what comes back to its reply, stamped on arrival and before any parsing.

    `on_free` is called when the connection can carry the next exchange, `lost` when it is gone, with the exchange that
    has not received a byte although it went out on a connection that had worked before: the server closed an idle
    connection just then, and the request may be sent again.
    """

    def __init__(
        self,
        clock: Clock,
        on_free: Callable[["Connection"], None],
        lost: Callable[["Connection", Exchange | None], None],
    ) -> None:
        self._clock = clock
        self._freed = on_free
        self._lost = lost
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._num_exchanges = 0
        self._opened = perf_counter_ns()

    @property
    def usable(self) -> bool:
        """Whether a request can be written now."""
        return self._exchange is None and self._transport is not None and not self._transport.is_closing()

    @property
    def age_ns(self) -> int:
        """Return the time since the connection was opened."""
        return perf_counter_ns() - self._opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        # With room for nothing, a write goes to the socket at once and not at the end of the loop's round.
        self._transport.set_write_buffer_limits(high=0)

    @property
    def _all_written(self) -> bool:
        """False where a server has answered before it had read the whole request."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def begin(self, exchange: Exchange) -> None:
        """Send this request; the instant of sending is taken right before the bytes are written."""
        assert self._transport is not None
        self._exchange = exchange
        self._num_exchanges += 1
        exchange.num_sends += 1
        exchange.sent = sent = perf_counter_ns()
        self._transport.write(with_send_time(exchange.request, self._clock.epoch_us(sent)))

    def data_received(self, data: bytes) -> None:
        """Asyncio calls this with bytes as they come."""
        at = perf_counter_ns()
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        try:
            complete = exchange.reply.feed(data, at)
        except ResponseError as error:
            self.abort()
            exchange.end("error", "malformed", f"malformed answer: {error}", at)
            return
        if complete:
            self._exchange = None
            if exchange.reply.keep_alive and self._all_written:
                self._freed(self)
            else:
                self.abort()
            exchange.on_reply_complete(at)

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio calls this once, when the connection is closed by either side."""
        at = perf_counter_ns()
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.outcome is not None:
            self._lost(self, None)
        elif not exchange.reply.first_byte and self._num_exchanges > 1 and exchange.num_sends == 1:
            self._lost(self, exchange)
        else:
            self._lost(self, None)
            if exchange.reply.end(at):
                exchange.on_reply_complete(at)
            else:
                exchange.on_connection_lost(_reason(error), at)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


def _reason(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) if error else "connection closed before the answer was complete"
