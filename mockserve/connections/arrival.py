"""When the bytes of a request arrived, and the caller that its headers name."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from multidict import istr

from blis_sim.engine.request import Request
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


CLASS_HEADER = istr("X-Gateway-Inference-Objective")
TENANT_HEADER = istr("X-Gateway-Inference-Fairness-Id")
TARGET_HEADER = istr("X-Slo-Ttft-Ms")
"""Names that gateways for inference read, and `blis observe` sends."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Nobody in particular unless told otherwise."""

    rank: int | None = None
    """The data-parallel rank, or instance, that is to answer; None leaves it to the server."""
    slo_class: str = ""
    tenant: str = ""
    slo_target_us: Micros = 0

    def named_in(self, request: Request) -> Request:
        """The request with what admission and scheduling may want to know of its caller."""
        if not (self.slo_class or self.tenant or self.slo_target_us):
            return request
        # A priority of 0 is what requests have that say nothing of it.
        priority = None if self.slo_class and not request.priority else request.priority
        return request._replace(
            slo_class=self.slo_class, tenant=self.tenant, slo_target_us=self.slo_target_us, priority=priority
        )


ANYBODY = Caller()


def caller_of(request: web.Request) -> Caller:
    """Who sent it. A target that is no number counts for none."""
    headers = request.headers
    rank, target_ms = wanted_rank(request), headers.get(TARGET_HEADER, "")
    slo_class, tenant = headers.get(CLASS_HEADER, ""), headers.get(TENANT_HEADER, "")
    if rank is None and not (target_ms or slo_class or tenant):
        return ANYBODY
    return Caller(
        rank=rank,
        slo_class=slo_class,
        tenant=tenant,
        slo_target_us=int(target_ms) * 1000 if target_ms.isascii() and target_ms.isdigit() else 0,
    )
