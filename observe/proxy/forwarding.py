"""Passes bytes between clients and servers: each connection of a client has one to a server for itself."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import perf_counter_ns
from typing import cast

import orjson

from observe.clock import Nanos
from observe.connection import Address, addresses_of
from observe.http import Server
from observe.proxy.exchanges import RequestReader, UnreadableError, with_host
from observe.proxy.tap import EventKind, Tap

_CONNECT_S = 10.0
_MAX_BEFORE_CONNECTED = 1 << 20
_SILENCE_NS = 500_000_000


@dataclass(slots=True)
class Upstream:
    """A server behind the proxy, by its number, and the addresses of its host, the one that worked last first."""

    number: int
    server: Server
    tls: ssl.SSLContext | None
    addresses: Sequence[Address] = ()

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection to the first address that takes one. Raises OSError and TimeoutError."""
        loop = asyncio.get_running_loop()
        if not self.addresses:
            self.addresses = await addresses_of(self.server.host, self.server.port)
        failure: OSError = OSError("no address")
        for host, port in self.addresses:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await loop.create_connection(
                        factory, host, port, ssl=self.tls, server_hostname=self.server.host if self.tls else None
                    )
            except OSError as error:  # a TimeoutError is one
                failure = error
            else:
                if (host, port) != self.addresses[0]:
                    self.addresses = sorted(self.addresses, key=lambda each: each != (host, port))
                return
        self.addresses = ()
        raise failure


class Forwarding:
    """All connections of a proxy."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.open: set[ClientSide] = set()
        self._numbers = count(1)

    def client_side(self, choose: Callable[[], Upstream]) -> "ClientSide":
        """The protocol of a new connection of a client, which leads to the server that `choose` gives."""
        return ClientSide(self, next(self._numbers), choose())

    @property
    def num_under_way(self) -> int:
        """Connections on which a request waits for its reply, or bytes of one have just come."""
        recently = perf_counter_ns() - _SILENCE_NS
        return sum(side.is_waiting or side.last_reply > recently for side in self.open)


class ClientSide(asyncio.Protocol):
    """The connection of a client."""

    def __init__(self, forwarding: Forwarding, number: int, upstream: Upstream) -> None:
        self.is_waiting = False
        """Whether the client sent something after the latest bytes of the server."""
        self.last_reply: Nanos = 0
        """Arrival time of the latest bytes of the server."""
        self.number = number
        self.upstream = upstream
        self.transport: asyncio.Transport | None = None
        self.server: ServerSide | None = None
        self.tap = forwarding.tap
        self._forwarding = forwarding
        self._reader: RequestReader | None = RequestReader()
        self._early: list[bytes] = []
        self._num_early_bytes = 0
        self._has_ended = False
        self._failure = ""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when a client has connected: the way to the server is opened before it sends anything."""
        self.transport = cast(asyncio.Transport, transport)
        self._forwarding.open.add(self)
        self.tap.put(EventKind.OPENED, self.number, perf_counter_ns(), b"%d" % self.upstream.number)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        """Asyncio calls this with bytes of the client."""
        at = perf_counter_ns()
        self.is_waiting = True
        if self._failure:
            self._refuse(at, data)
            return
        piece = self._for_server(data)
        if self.server is not None:
            self.server.write(piece)
        else:
            self._early.append(piece)
            self._num_early_bytes += len(piece)
            if self._num_early_bytes > _MAX_BEFORE_CONNECTED and self.transport is not None:
                self.transport.pause_reading()
        self.tap.put(EventKind.REQUEST, self.number, at, data)

    def eof_received(self) -> bool:
        """Asyncio calls this when the client sends no more; replies may still come."""
        self._has_ended = True
        self.tap.put(EventKind.CLIENT_ENDED, self.number, perf_counter_ns())
        if self.server is not None:
            self.server.end()
        return self.upstream.tls is None

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio calls this when the client is gone: the server sees the same."""
        self._forwarding.open.discard(self)
        self.tap.put(EventKind.CLIENT_GONE, self.number, perf_counter_ns())
        if self.server is not None:
            self.server.disconnect(error)
        elif self._connecting is not None:
            self._connecting.cancel()
            self.tap.put(EventKind.SERVER_GONE, self.number, perf_counter_ns())

    @property
    def has_gone(self) -> bool:
        """Whether the client has closed its connection as a whole, of which the loop may not have heard yet."""
        if not self._has_ended or self.transport is None:
            return False
        connected = self.transport.get_extra_info("socket")
        return self.transport.is_closing() or connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def stop(self) -> None:
        """Hang up because the proxy ends."""
        self.tap.put(EventKind.STOPPED, self.number, perf_counter_ns())
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Asyncio calls this when the client reads too slowly."""
        if self.server is not None:
            self.server.pause()

    def resume_writing(self) -> None:
        """Asyncio calls this when the client has caught up."""
        if self.server is not None:
            self.server.resume()

    def connected(self, server: "ServerSide") -> None:
        """The way to the server is open."""
        self.server = server
        if self.transport is None or self.transport.is_closing():
            server.disconnect(None)
            return
        for piece in self._early:
            server.write(piece)
        self._early.clear()
        if self._has_ended:
            server.end()
        if self._num_early_bytes > _MAX_BEFORE_CONNECTED:
            self.transport.resume_reading()

    async def _connect(self) -> None:
        try:
            await self.upstream.connect(lambda: ServerSide(self))
        except OSError as error:
            reason = "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
            self._failure = f"cannot connect to {self.upstream.server.url}: {reason}"
            if self._early:
                self._refuse(perf_counter_ns(), b"")

    def _refuse(self, at: int, data: bytes) -> None:
        """Answer for a server that cannot be reached."""
        if self.transport is None or self.transport.is_closing():
            return
        if data:
            self.tap.put(EventKind.REQUEST, self.number, at, data)
        reply = refusal(self._failure)
        self.transport.write(reply)
        self.tap.put(EventKind.REPLY, self.number, perf_counter_ns(), reply)
        self.tap.put(EventKind.SERVER_GONE, self.number, perf_counter_ns())
        self.transport.close()

    def _for_server(self, data: bytes) -> bytes:
        """The bytes with the server's own host in each head; as they are once they are no requests that can be read."""
        reader = self._reader
        if reader is None:
            return data
        server = self.upstream.server
        pieces = []
        try:
            for part in reader.feed(data):
                is_head = part.head is not None
                pieces.append(with_host(part.raw, server.authority, server.prefix) if is_head else part.raw)
        except UnreadableError:
            self._reader = None
            pieces.append(reader.rest)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ServerSide(asyncio.Protocol):
    """The connection to a server that belongs to one connection of a client."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._client.connected(self)

    def data_received(self, data: bytes) -> None:
        """Asyncio calls this with bytes of the server, which go to the client before anything else is done."""
        client = self._client
        if client.transport is not None:
            client.transport.write(data)
        client.is_waiting = False
        client.last_reply = at = perf_counter_ns()
        client.tap.put(EventKind.REPLY, client.number, at, data)

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio calls this when the server is gone: the client sees the same."""
        client = self._client
        if client.has_gone:
            client.tap.put(EventKind.CLIENT_GONE, client.number, perf_counter_ns())
        client.tap.put(EventKind.SERVER_GONE, client.number, perf_counter_ns())
        if client.transport is not None:
            if error is None:
                client.transport.close()
            else:
                client.transport.abort()

    def pause_writing(self) -> None:
        """Asyncio calls this when the server reads too slowly."""
        if self._client.transport is not None:
            self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """Asyncio calls this when the server has caught up."""
        if self._client.transport is not None:
            self._client.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes of the client."""
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> None:
        """Send no more; the reply may still come."""
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            with suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()

    def disconnect(self, error: Exception | None) -> None:
        """Hang up as the client has."""
        if self._transport is None:
            return
        if error is None:
            self._transport.close()
        else:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()


def refusal(reason: str) -> bytes:
    """The reply of a proxy whose server cannot be reached."""
    error = {"message": reason, "type": "Bad Gateway", "param": None, "code": 502}
    body = orjson.dumps({"error": error})
    head = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)
