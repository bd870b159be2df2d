"""One connection: simple requests are answered one after the other, aiohttp answers all others.

aiohttp gets a single request if the request is simple except for its path, and returns the connection afterwards. The
first bytes that are no simple request hand the connection over to aiohttp for good.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mockserve.http.application import FastRoute, PlainErrorConnection
from mockserve.http.simple_request import ParseStatus, RequestReader, SimpleRequest, bytes_for_aiohttp
from mockserve.realtime.deliveries import WriteCoalescer
from mockserve.transport.aiohttp_internals import BufferedRequest, buffered_request, tcp_keepalive
from mockserve.transport.clients import TimestampedConnection
from mockserve.transport.headers import EventResponse
from mockserve.transport.tunnel import HTTP2_PREFACE, Tunnel

PARTIAL_REQUEST_TIMEOUT_S = 0.02
"""Seconds to wait for the rest of a request before aiohttp takes over, which may answer a head without its body."""
MOST_BYTES_AHEAD = 64 * 1024
"""Bytes that are read ahead of a reply; further bytes stay in the kernel and with the client."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HttpListener:
    """State that the connections of one listener share."""

    routes: Mapping[tuple[str, str], FastRoute]
    new_library: Callable[[], PlainErrorConnection]
    wire: WriteCoalescer
    reader: RequestReader
    keep_alive_s: float
    first_request_s: float
    """Time limit for the first request of a connection."""
    most_body_bytes: int
    rpc_path: str = ""
    """Unix socket of a gRPC server, which gets the HTTP/2 connections; empty for none."""
    connections: "set[HttpConnection]" = field(default_factory=set)
    is_closing: bool = False
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def left(self, connection: "HttpConnection") -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def until_empty(self) -> None:
        """Return when no connection is open."""
        while self.connections:
            self._empty.clear()
            await self._empty.wait()

    def close_idle(self) -> None:
        """Close the connections without a reply, and each of the others when its reply has ended."""
        self.is_closing = True
        for each in tuple(self.connections):
            if each.task is None:
                each.close_unless_delegated()

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for open replies, then cut them. aiohttp closes its own connections."""
        self.close_idle()
        for _ in ("let them end", "let them notice that they are cut"):
            tasks = [each.task for each in self.connections if each.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
        for each in tuple(self.connections):
            each.close_unless_delegated()


class HttpConnection(TimestampedConnection):
    """Parses and answers the requests of a connection in order."""

    __slots__ = (
        "_close_at_s",
        "_http_listener",
        "_is_answering",
        "_is_handed_over",
        "_is_reading_paused",
        "_library",
        "_partial_timer",
        "_rest",
        "_tunnel",
        "_watch",
        "peername",
        "sockname",
        "ssl_context",
        "task",
    )

    def __init__(self, http_listener: HttpListener) -> None:
        super().__init__(http_listener.wire)
        self.task: asyncio.Task[None] | None = None
        """The task that answers a request."""
        self._http_listener = http_listener
        self._rest = b""
        """Received bytes of an incomplete request."""
        self._is_answering = False
        """Whether a request is being answered, here or by aiohttp."""
        self._is_handed_over = False
        self._is_reading_paused = False
        """Whether reading is paused because too many bytes wait."""
        self._library: PlainErrorConnection | None = None
        self._tunnel: Tunnel | None = None
        self._partial_timer: asyncio.TimerHandle | None = None
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
        self._http_listener.connections.add(self)
        self._close_at_s = self._loop.time() + self._http_listener.first_request_s
        self._watch = self._loop.call_at(self._close_at_s, self._check_idle)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._http_listener.left(self)
        self._forget_timers()
        if self._library is not None:
            self._library.connection_lost(exc)
        if self._tunnel is not None:
            self._tunnel.client_lost()
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._library is not None:
            self._library.pause_writing()
        if self._tunnel is not None:
            self._tunnel.client_is_slow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._library is not None:
            self._library.resume_writing()
        if self._tunnel is not None:
            self._tunnel.client_is_slow(False)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._tunnel is not None:
            self._tunnel.from_client(data)
            return
        if self._is_handed_over:
            assert self._library is not None
            self._library.data_received(data)
            return
        self._rest = self._rest + data if self._rest else data
        if not self._is_answering:
            self._start_next_request()
        elif len(self._rest) > MOST_BYTES_AHEAD and not self._is_reading_paused and self.transport is not None:
            self._is_reading_paused = True
            self.transport.pause_reading()

    # --- requests ---

    def _start_next_request(self) -> None:
        """Begin with the next request if it is complete."""
        found = self._http_listener.reader.first(self._rest)
        if found is ParseStatus.PART:
            if self._partial_timer is None:
                self._partial_timer = self._loop.call_later(PARTIAL_REQUEST_TIMEOUT_S, self._hand_over)
            return
        if isinstance(found, ParseStatus):
            self._hand_over()
            return
        if self._partial_timer is not None:
            self._partial_timer.cancel()
            self._partial_timer = None
        self._is_answering = True
        self._rest = self._rest[found.num_bytes :]
        if self._is_reading_paused and len(self._rest) <= MOST_BYTES_AHEAD:
            self._resume_reading()
        route = self._http_listener.routes.get((found.head.method, found.head.path))
        if route is None:
            self._delegate_request(bytes_for_aiohttp(found))
        else:
            self.task = self._loop.create_task(self._answer(route, found))

    async def _answer(self, route: FastRoute, simple: SimpleRequest) -> None:
        request = self._request(route, simple)
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
            _logger.exception("%s %s failed", simple.head.method, simple.head.path)
        finally:
            self.task = None
            self._answered(keeps_alive)

    def _request(self, route: FastRoute, simple: SimpleRequest) -> BufferedRequest:
        head = simple.head
        return buffered_request(
            head.method,
            head.path,
            head.headers,
            head.closes,
            simple.body,
            route.url,
            route.app,
            route.match_info,
            self,
            self._loop,
            self._http_listener.most_body_bytes,
        )

    def _answered(self, keeps_alive: bool) -> None:
        """Continue after a reply was written or failed."""
        self._is_answering = False
        if not keeps_alive or self._http_listener.is_closing:
            self.close_gracefully()
        elif self._rest:
            self._start_next_request()
        else:
            self._is_idle_now()

    # --- aiohttp ---

    def _hand_over(self) -> None:
        """Pass all further bytes of the connection to aiohttp, or those of HTTP/2 to the gRPC server."""
        self._is_handed_over = True
        self._forget_timers()
        rest, self._rest = self._rest, b""
        if self._http_listener.rpc_path and self.transport is not None and rest.startswith(HTTP2_PREFACE):
            self._tunnel = Tunnel(self._http_listener.rpc_path)
            self._tunnel.attach(self.transport)
            self._tunnel.from_client(rest)
            return
        self._new_library().data_received(rest)
        if self._is_reading_paused:
            self._resume_reading()

    def _delegate_request(self, data: bytes) -> None:
        """Pass one request to aiohttp."""
        library = self._new_library()
        library.on_answered = self._on_aiohttp_reply
        library.data_received(data)

    def _new_library(self) -> PlainErrorConnection:
        assert self.transport is not None
        library = self._library = self._http_listener.new_library()
        library.attach(self.transport, is_paused=self._paused)
        return library

    def _on_aiohttp_reply(self) -> None:
        # aiohttp closes a connection that it does not keep alive in its next turn of the event loop.
        self._loop.call_soon(self._loop.call_soon, self._reclaim)

    def _reclaim(self) -> None:
        library, transport = self._library, self.transport
        if library is None or transport is None or transport.is_closing():
            return
        self._library = None
        library.detach()
        if not self._is_reading_paused:
            transport.resume_reading()
        self._answered(True)

    # --- time ---

    def _is_idle_now(self) -> None:
        """Start the timer that closes the connection unless a request arrives in time."""
        self._close_at_s = self._loop.time() + self._http_listener.keep_alive_s
        if self._watch is not None and self._watch.when() > self._close_at_s:
            self._watch.cancel()
            self._watch = None
        if self._watch is None:
            self._watch = self._loop.call_at(self._close_at_s, self._check_idle)

    def _check_idle(self) -> None:
        self._watch = None
        if self._is_answering:
            return
        if self._loop.time() < self._close_at_s:
            self._watch = self._loop.call_at(self._close_at_s, self._check_idle)
        else:
            self.close_gracefully()

    def close_unless_delegated(self) -> None:
        """Close the connection unless aiohttp has it."""
        if self._library is None:
            self.close_gracefully()

    def close_gracefully(self) -> None:
        """Close the connection after written bytes have been sent."""
        if self.transport is not None:
            self.transport.close()

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        if self.transport is not None:
            self.transport.resume_reading()

    def _forget_timers(self) -> None:
        for timer in (self._partial_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._partial_timer = self._watch = None
