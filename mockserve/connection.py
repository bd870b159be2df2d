"""When bytes came in: a connection that notes it before anything is done with them.

A request waits for its turn in the event loop before its handler runs, longer on an idle server than on a busy one. To
the engine it has arrived when its last byte has.
"""

import asyncio
import time

from aiohttp import web

from engine.units import Micros
from mockserve.realtime import RealtimeDriver


class StampedConnection(asyncio.Protocol):
    """Hands everything on to `inner` and remembers when data last came."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self.received_at_s: float | None = None
        """Reading of the monotonic clock."""
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received_at_s = time.monotonic()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def arrived_at(request: web.Request, driver: RealtimeDriver) -> Micros:
    """When the last byte of `request`, whose body has been read, came in on the driver's clock."""
    transport = request.transport
    connection = transport.get_protocol() if transport is not None else None
    if isinstance(connection, StampedConnection) and connection.received_at_s is not None:
        return driver.instant_at(connection.received_at_s)
    return driver.clock()
