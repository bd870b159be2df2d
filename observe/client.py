"""The HTTP client: a pool of open connections, which keeps connecting out of measured times, and time limits."""

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from observe.clock import Clock, Nanos, start_clock
from observe.connection import CANCELLED, Address, Connection, Exchange, Outcome, addresses_of
from observe.errors import RunError
from observe.http import HeadCache, Server


class Deadlines:
    """Calls `on_timeout` for each exchange that is still watched when its time is over, never early.

    Exchanges that may take equally long reach their deadlines in the order in which they began, so only the first of
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

    Spare connections are kept open beside the busy ones; a request that finds none waits for a new one, and is
    stamped as sent only then. There is no limit on connections, and all go to the address that answered first.
    Must be used inside a running event loop.
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
    ) -> None:
        """Send a complete request now and call `finished` once, with its outcome.

        The request is given up after `timeout_s`, or when the client gives up all requests if that is earlier.
        """
        self._start(request, streaming, finished, min(timeout_s or self._timeout_s, self._timeout_s))
        self.refill()

    def _start(self, request: bytes, streaming: bool, finished: Callable[[Outcome], None], timeout_s: float) -> None:
        exchange = Exchange(
            request,
            streaming=streaming,
            finished=finished,
            on_settled=self._settle,
            timeout_s=timeout_s,
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
