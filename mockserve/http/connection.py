"""One connection: simple requests are answered one after the other, aiohttp answers all others.

aiohttp gets a single request if the request is simple except for its path, and returns the connection afterwards. The
first bytes that are no simple request hand the connection over to aiohttp for good.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mockserve.http.application import FrontRoute, PlainErrors
from mockserve.http.simple_request import ParseStatus, RequestReader, SimpleRequest, for_library
from mockserve.realtime.deliveries import WriteCoalescer
from mockserve.transport.aiohttp_internals import WholeRequest, tcp_keepalive, whole_request
from mockserve.transport.clients import StampedConnection
from mockserve.transport.headers import EventResponse

PATIENCE_S = 0.02
"""Seconds to wait for the rest of a request before aiohttp takes over, which may answer a head without its body."""
MOST_BYTES_AHEAD = 64 * 1024
"""Bytes that are read ahead of a reply; further bytes stay in the kernel and with the client."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Front:
    """State that the connections of one listener share."""

    routes: Mapping[tuple[str, str], FrontRoute]
    new_library: Callable[[], PlainErrors]
    wire: WriteCoalescer
    reader: RequestReader
    keep_alive_s: float
    first_request_s: float
    """Time limit for the first request of a connection."""
    most_body_bytes: int
    connections: "set[FrontConnection]" = field(default_factory=set)
    is_closing: bool = False

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for open replies, then cut them. aiohttp closes its own connections."""
        self.is_closing = True
        for each in tuple(self.connections):
            if each.task is None:
                each.close_if_own()
        for _ in ("let them end", "let them notice that they are cut"):
            tasks = [each.task for each in self.connections if each.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
        for each in tuple(self.connections):
            each.close_if_own()


class FrontConnection(StampedConnection):
    """Parses and answers the requests of a connection in order."""

    __slots__ = (
        "_close_at_s",
        "_front",
        "_is_answering",
        "_is_given_away",
        "_is_holding",
        "_library",
        "_patience",
        "_rest",
        "_watch",
        "peername",
        "sockname",
        "ssl_context",
        "task",
    )

    def __init__(self, front: Front) -> None:
        super().__init__(front.wire)
        self.task: asyncio.Task[None] | None = None
        """The task that answers a request."""
        self._front = front
        self._rest = b""
        """Received bytes of an incomplete request."""
        self._is_answering = False
        """Whether a request is being answered, here or by aiohttp."""
        self._is_given_away = False
        self._is_holding = False
        """Whether reading is paused because too many bytes wait."""
        self._library: PlainErrors | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        """Timer that closes an idle connection."""
        self._close_at_s = 0.0
        # Attributes of a protocol that aiohttp's requests use.
        self.ssl_context: Any = None
        self.peername: Any = None
        self.sockname: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        get_info = self.transport.get_extra_info
        self.ssl_context, self.peername, self.sockname = (
            get_info("sslcontext"),
            get_info("peername"),
            get_info("sockname"),
        )
        tcp_keepalive(self.transport)
        self._front.connections.add(self)
        self._close_at_s = self._loop.time() + self._front.first_request_s
        self._watch = self._loop.call_at(self._close_at_s, self._look)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._front.connections.discard(self)
        self._forget_timers()
        if self._library is not None:
            self._library.connection_lost(exc)
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._library is not None:
            self._library.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._library is not None:
            self._library.resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_given_away:
            assert self._library is not None
            self._library.data_received(data)
            return
        self._rest = self._rest + data if self._rest else data
        if not self._is_answering:
            self._go_on()
        elif len(self._rest) > MOST_BYTES_AHEAD and not self._is_holding and self.transport is not None:
            self._is_holding = True
            self.transport.pause_reading()

    # --- requests ---

    def _go_on(self) -> None:
        """Begin with the next request if it is complete."""
        found = self._front.reader.first(self._rest)
        if found is ParseStatus.PART:
            if self._patience is None:
                self._patience = self._loop.call_later(PATIENCE_S, self._give_away)
            return
        if isinstance(found, ParseStatus):
            self._give_away()
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._is_answering = True
        self._rest = self._rest[found.num_bytes :]
        if self._is_holding and len(self._rest) <= MOST_BYTES_AHEAD:
            self._read_on()
        route = self._front.routes.get((found.head.method, found.head.path))
        if route is None:
            self._lend(for_library(found))
        else:
            self.task = self._loop.create_task(self._answer(route, found))

    async def _answer(self, route: FrontRoute, usual: SimpleRequest) -> None:
        request = self._request(route, usual)
        keeps_alive = False
        try:
            response = await route.respond(request)
            if not isinstance(response, EventResponse):
                await response.prepare(request)
                await response.write_eof()
            keeps_alive = bool(response.keep_alive)
        except ConnectionError:
            _logger.debug("the client left before its reply")
        except Exception:
            _logger.exception("%s %s failed", usual.head.method, usual.head.path)
        finally:
            self.task = None
            self._answered(keeps_alive)

    def _request(self, route: FrontRoute, usual: SimpleRequest) -> WholeRequest:
        head = usual.head
        return whole_request(
            head.method,
            head.path,
            head.headers,
            head.closes,
            usual.body,
            route.url,
            route.app,
            route.match_info,
            self,
            self._loop,
            self._front.most_body_bytes,
        )

    def _answered(self, keeps_alive: bool) -> None:
        """Continue after a reply was written or failed."""
        self._is_answering = False
        if not keeps_alive or self._front.is_closing:
            self.hang_up()
        elif self._rest:
            self._go_on()
        else:
            self._is_idle_now()

    # --- aiohttp ---

    def _give_away(self) -> None:
        """Pass all further bytes of the connection to aiohttp."""
        self._is_given_away = True
        self._forget_timers()
        rest, self._rest = self._rest, b""
        self._new_library().data_received(rest)
        if self._is_holding:
            self._read_on()

    def _lend(self, data: bytes) -> None:
        """Pass one request to aiohttp."""
        library = self._new_library()
        library.on_answered = self._answered_by_library
        library.data_received(data)

    def _new_library(self) -> PlainErrors:
        assert self.transport is not None
        library = self._library = self._front.new_library()
        library.attach(self.transport, is_paused=self._paused)
        return library

    def _answered_by_library(self) -> None:
        # aiohttp closes a connection that it does not keep alive in its next turn of the event loop.
        self._loop.call_soon(self._loop.call_soon, self._take_back)

    def _take_back(self) -> None:
        library, transport = self._library, self.transport
        if library is None or transport is None or transport.is_closing():
            return
        self._library = None
        library.detach()
        if not self._is_holding:
            transport.resume_reading()
        self._answered(True)

    # --- time ---

    def _is_idle_now(self) -> None:
        """Start the timer that closes the connection unless a request arrives in time."""
        self._close_at_s = self._loop.time() + self._front.keep_alive_s
        if self._watch is not None and self._watch.when() > self._close_at_s:
            self._watch.cancel()
            self._watch = None
        if self._watch is None:
            self._watch = self._loop.call_at(self._close_at_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._is_answering:
            return
        if self._loop.time() < self._close_at_s:
            self._watch = self._loop.call_at(self._close_at_s, self._look)
        else:
            self.hang_up()

    def close_if_own(self) -> None:
        """Close the connection unless aiohttp has it."""
        if self._library is None:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection after written bytes have been sent."""
        if self.transport is not None:
            self.transport.close()

    def _read_on(self) -> None:
        self._is_holding = False
        if self.transport is not None:
            self.transport.resume_reading()

    def _forget_timers(self) -> None:
        for timer in (self._patience, self._watch):
            if timer is not None:
                timer.cancel()
        self._patience = self._watch = None
