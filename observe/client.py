"""The HTTP client: TCP connections of one exchange at a time, a pool of them, and time limits."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Thread
from time import perf_counter_ns
from typing import Any, TypeAlias, cast

from observe.errors import ResponseError, RunError
from observe.event_loop import Clock, Nanos, start_clock
from observe.http import HeadCache, Server, with_send_time
from observe.responses import Reply
from traces import TRACE_COLUMNS, TraceRow
from traces.redaction import Redactor, secrets_in

# Texts of a run without secrets: columns of rows, errors that repeat what was sent, and messages.

_FIXED = frozenset({"status", "parents", "context_of", "x_request_id"})
"""Columns whose texts the program makes itself."""
_TEXTS = tuple(column.name for column in TRACE_COLUMNS if column.kind is str and column.name not in _FIXED)


def redacted_row(row: TraceRow, redactor: Redactor, others: Iterable[str] = ()) -> TraceRow:
    """The row with all texts of users redacted, those in the `others` columns included."""
    texts = {name: getattr(row, name) for name in (*_TEXTS, *others)}
    changed: dict[str, Any] = {name: redactor.text(text) for name, text in texts.items() if text}
    return replace(row, **changed) if changed else row


@lru_cache(maxsize=16)
def _redactor(secrets: tuple[str, ...]) -> Redactor:
    return Redactor(()).hiding(secrets)


# One TCP connection to a resolved address, which carries one exchange of request and answer at a time.

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
HUNG_UP = "hung_up"
"""The kind of a request whose client hung up on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a request.

    `status` is ok, error, timeout or incomplete; `kind` names failures for counting (`http_500`, `timeout`, `stream`,
    `connection`, `malformed`, `cancelled`, `hung_up`). `sent` is when it was tried if it could not be sent. `server` is
    the address of the server, where there are several.
    """

    status: str
    kind: str
    error_message: str
    sent: Nanos
    ended: Nanos
    reply: Reply
    server: str = ""

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

    The request may take `timeout_s`, after which its client has given up or, if it `hangs_up`, has enough. With `heads`
    its head is looked up among those that other replies had.
    """

    __slots__ = ("finished", "hangs_up", "num_sends", "on_settled", "outcome", "reply", "request", "sent", "timeout_s")

    def __init__(
        self,
        request: bytes,
        *,
        streaming: bool,
        finished: Callable[[Outcome], None],
        on_settled: Callable[["Exchange", Outcome], None],
        timeout_s: float,
        hangs_up: bool = False,
        heads: HeadCache | None = None,
    ) -> None:
        self.hangs_up = hangs_up
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
            lines = self.request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines[1:])
            message = _redactor(tuple(secrets_in((name, value.strip()) for name, _, value in fields))).text(message)
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

    `on_free` is called when the connection can carry the next exchange, and `lost` when it is gone. `lost` gets an
    exchange that went out on a connection that had worked before, and has not received a byte. The server closed an
    idle connection just then, and the request may be sent again.
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
            # A server may answer before it has read the whole request.
            is_written = self._transport is not None and not self._transport.get_write_buffer_size()
            if exchange.reply.keep_alive and is_written:
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


# The HTTP client: a pool of open connections, which keeps connecting out of measured times, and time limits.


class Deadlines:
    """Calls `on_timeout` for each exchange that is still watched when its time is over, never early.

    Exchanges that may take equally long reach their deadlines in the order in which they began. So only the first of
    them is worth a timer, and another one only when that has fired.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_timeout: Callable[[Exchange], None]) -> None:
        self._loop = loop
        self._passed = on_timeout
        self._watched: dict[float, dict[Exchange, Nanos]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def watch(self, exchange: Exchange) -> None:
        """Begin to count the time of this exchange."""
        timeout_s = exchange.timeout_s
        watched = self._watched.get(timeout_s)
        if watched is None:
            watched = self._watched[timeout_s] = {}
            self._timers[timeout_s] = self._loop.call_later(timeout_s, self._expire, timeout_s)
        watched[exchange] = perf_counter_ns() + int(timeout_s * 1e9)

    def unwatch(self, exchange: Exchange) -> None:
        """Remove an exchange that has ended."""
        watched = self._watched.get(exchange.timeout_s)
        if watched is not None:
            watched.pop(exchange, None)

    def close(self) -> None:
        """Watch nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._watched.clear()
        self._timers.clear()

    def _expire(self, timeout_s: float) -> None:
        watched = self._watched[timeout_s]
        while watched:
            exchange, deadline = next(iter(watched.items()))
            left_ns = deadline - perf_counter_ns()
            if left_ns > 0:
                self._timers[timeout_s] = self._loop.call_later(left_ns / 1e9, self._expire, timeout_s)
                return
            del watched[exchange]
            self._passed(exchange)
        # Each length of time that requests have of their own would stay for ever.
        del self._watched[timeout_s]
        del self._timers[timeout_s]


# A server that closes new connections at once is not offered others in their place.
_SHORT_LIFE_NS = 1_000_000_000


class Client:
    """Sends requests to one server, each at once on a connection that is already open.

    Spare connections are kept open beside the busy ones. A request that finds none waits for a new one, and is stamped
    as sent only then. There is no limit on connections, and all go to the address that answered first. Must be used
    inside a running event loop.
    """

    def __init__(
        self,
        server: Server,
        *,
        timeout_s: float,
        num_spare: int,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.server = server
        self.clock = clock or start_clock()
        """The clock that maps instants to time of day; processes that send for one run share it."""
        self._timeout_s = timeout_s
        self._num_spare = num_spare
        self._loop = asyncio.get_running_loop()
        self._ssl = (tls or ssl.create_default_context()) if server.tls else None
        self._address: tuple[str, int] | None = None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._carriers: dict[Exchange, Connection | None] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._num_adding = 0
        self._closed = False
        self._heads = HeadCache()
        self._deadlines = Deadlines(self._loop, self._time_out)

    @property
    def num_in_flight(self) -> int:
        """Requests under way."""
        return len(self._carriers)

    async def open(self) -> None:
        """Connect for the first time. Raises RunError when the server cannot be reached."""
        try:
            async with asyncio.timeout(min(self._timeout_s, 30)):
                self._idle.append(await self._connect())
        except (OSError, TimeoutError) as error:
            raise RunError(f"cannot reach {self.server.url}: {reason_of(error)}") from error

    async def warm_up(self, request: bytes) -> None:
        """Open the spare connections and send this request once over each, so that none is new to the server."""
        self.refill()
        await self._wait_for_connections()
        await asyncio.gather(*(self.fetch(request, timeout_s=5) for _ in range(len(self._idle))))
        # A server may have closed them after that.
        self.refill()
        await self._wait_for_connections()

    def send(
        self,
        request: bytes,
        *,
        streaming: bool,
        finished: Callable[[Outcome], None],
        timeout_s: float | None = None,
        hang_up_s: float | None = None,
    ) -> None:
        """Send a complete request now and call `finished` once, with its outcome.

        The request is given up after `timeout_s`, or when the client gives up all requests if that is earlier. With
        `hang_up_s` its client hangs up after so long, which is no failure of the server.
        """
        timeout_s = min(timeout_s or self._timeout_s, self._timeout_s)
        hangs_up = hang_up_s is not None and hang_up_s < timeout_s
        self._start(request, streaming, finished, hang_up_s if hangs_up and hang_up_s else timeout_s, hangs_up)
        self.refill()

    def _start(
        self,
        request: bytes,
        streaming: bool,
        finished: Callable[[Outcome], None],
        timeout_s: float,
        hangs_up: bool = False,
    ) -> None:
        exchange = Exchange(
            request,
            streaming=streaming,
            finished=finished,
            on_settled=self._settle,
            timeout_s=timeout_s,
            hangs_up=hangs_up,
            heads=self._heads,
        )
        connection = self._take()
        self._carriers[exchange] = connection
        if connection is not None:
            connection.begin(exchange)
        else:
            exchange.sent = perf_counter_ns()
            self._spawn(self._connect_and_begin(exchange))
        self._deadlines.watch(exchange)

    async def fetch(self, request: bytes, *, timeout_s: float = 30) -> Outcome:
        """Send a request that is not streamed and wait for its outcome."""
        outcome: asyncio.Future[Outcome] = self._loop.create_future()

        def finished(each: Outcome) -> None:
            if not outcome.done():
                outcome.set_result(each)

        self._start(request, False, finished, timeout_s)
        return await outcome

    def refill(self) -> None:
        """Open new connections until there are enough spare ones; returns at once."""
        while not self._closed and len(self._idle) + self._num_adding < self._num_spare:
            self._num_adding += 1
            self._spawn(self._add_spare())

    def cancel_all(self) -> None:
        """End all that is under way as cancelled."""
        for exchange in list(self._carriers):
            self._drop(exchange, "error", CANCELLED, CANCELLED)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self.cancel_all()
        self._deadlines.close()
        for task in self._connecting:
            task.cancel()
        for connection in list(self._open):
            connection.abort()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    async def _wait_for_connections(self) -> None:
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _take(self) -> Connection | None:
        # The one used last is the least likely to have been closed by the server meanwhile.
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        if self._address is not None:
            return await self._connect_to(self._address)
        *others, last = await addresses_of(self.server.host, self.server.port)
        for address in others:
            with suppress(OSError):
                return await self._connect_to(address)
        return await self._connect_to(last)

    async def _connect_to(self, address: Address) -> Connection:
        _, connection = await self._loop.create_connection(
            lambda: Connection(self.clock, self._idle.append, self._on_connection_lost),
            *address,
            ssl=self._ssl,
            server_hostname=self.server.host if self._ssl else None,
        )
        self._open.add(connection)
        self._address = address  # to resolve the name once is enough
        return connection

    async def _add_spare(self) -> None:
        try:
            # If connecting fails, the request that needs the connection reports the reason.
            with suppress(OSError):
                self._idle.append(await self._connect())
        finally:
            self._num_adding -= 1

    async def _connect_and_begin(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            exchange.end("error", "connection", f"HTTP error: {reason_of(error)}", perf_counter_ns())
            return
        if exchange.outcome is None:
            self._carriers[exchange] = connection
            connection.begin(exchange)
        else:
            self._idle.append(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _on_connection_lost(self, connection: Connection, to_resend: Exchange | None) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if to_resend is not None:
            self._carriers[to_resend] = None
            self._spawn(self._connect_and_begin(to_resend))
        elif connection.age_ns > _SHORT_LIFE_NS:
            self.refill()

    def _time_out(self, exchange: Exchange) -> None:
        if exchange.hangs_up:
            self._drop(exchange, "incomplete", HUNG_UP, "the client hung up")
            return
        message = f"HTTP timeout: no complete answer within {exchange.timeout_s:g} s"
        self._drop(exchange, "timeout", "timeout", message)

    def _drop(self, exchange: Exchange, status: str, kind: str, message: str) -> None:
        connection = self._carriers.get(exchange)
        exchange.end(status, kind, message, perf_counter_ns())
        if connection is not None:
            connection.abort()

    def _settle(self, exchange: Exchange, outcome: Outcome) -> None:
        del self._carriers[exchange]
        self._deadlines.unwatch(exchange)
        exchange.finished(outcome)


def reason_of(error: BaseException) -> str:
    """Return the reason of a failed connection, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    if isinstance(error, OSError) and error.errno is not None:
        # The event loops word connection errors differently; name resolution has negative numbers.
        return (os.strerror(error.errno) if error.errno > 0 else str(error.strerror)).lower()
    return str(error).lower()
