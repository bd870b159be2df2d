"""When bytes came in: a connection that notes it before anything is done with them.

A request waits for its turn in the event loop before its handler runs, longer on an idle server than on a busy one. To
the engine it has arrived when its last byte has.
"""

import asyncio
import time
from typing import Protocol

from aiohttp import web
from multidict import istr

from blis_sim.engine.units import Micros
from mockserve.connections.aiohttp_internals import BaseProtocol
from mockserve.connections.headers import header_text
from mockserve.realtime.interface import Driver
from mockserve.realtime.wire import Wire

CREDIBLE_WAY_S = 0.05
"""A send time further back than this is not believed."""

RANK_HEADER = istr("X-data-parallel-rank")
START_HEADER = istr("X-Request-Start")

LOOPBACK = frozenset({"127.0.0.1", "::1"})


class Backlog(Protocol):
    """Bytes that wait to be sent."""

    def began(self) -> None:
        """More wait than the limit that the transport was given."""
        ...

    def ended(self) -> None:
        """Few are left."""
        ...


class StampedConnection(BaseProtocol):
    """Remembers when data last came, and tells who watches what waits for the client."""

    __slots__ = ("_wire", "backlog", "received_at_s")

    def __init__(self, wire: Wire) -> None:
        super().__init__(asyncio.get_running_loop())
        self.received_at_s: float | None = None
        """Reading of the monotonic clock."""
        self.backlog: Backlog | None = None
        """Who wants to know that the client does not read as fast as is written."""
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        self.received_at_s = time.monotonic()
        self._wire.num_received += 1

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.backlog is not None:
            self.backlog.began()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.backlog is not None:
            self.backlog.ended()


def arrived_at(request: web.Request, driver: Driver) -> Micros:
    """When `request`, whose body has been read, arrived on the driver's clock: when its last byte came in.

    A client on this machine may say when it sent it, in the header that proxies use for that. What the machine took to
    carry the bytes over is then no part of the simulation, so that equal loads give equal runs.
    """
    transport = request.transport
    connection = transport.get_protocol() if transport is not None else None
    if not isinstance(connection, StampedConnection) or connection.received_at_s is None:
        return driver.clock()
    received_at_s = connection.received_at_s
    sent_at_s = _sent_at(request)
    if sent_at_s is not None and 0 <= received_at_s - sent_at_s <= CREDIBLE_WAY_S:
        return driver.instant_at(sent_at_s)
    return driver.instant_at(received_at_s)


def wanted_rank(request: web.Request) -> int | None:
    """The data-parallel rank that a header asks for; None if there is none, or no number."""
    wanted = header_text(request, RANK_HEADER)
    try:
        return None if wanted is None else int(wanted)
    except ValueError:
        return None


def _sent_at(request: web.Request) -> float | None:
    """Reading of the monotonic clock when a client on this machine says it sent `request`."""
    stamp = request.headers.get(START_HEADER, "")
    if not stamp.startswith("t=") or request.remote not in LOOPBACK:
        return None
    try:
        unix_time_s = int(stamp[2:]) / 1e6
    except ValueError:
        return None
    return unix_time_s - time.time() + time.monotonic()
