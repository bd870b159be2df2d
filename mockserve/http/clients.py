"""Clients of connections: arrival times, caller metadata in headers, limits for slow readers."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from multidict import istr

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.http.aiohttp_internals import BaseProtocol
from mockserve.http.headers import header_text
from mockserve.realtime.driver import Driver, WriteCoalescer

MAX_TRANSIT_S = 0.05
"""A reported send time that is older than this is ignored."""

RANK_HEADER = istr("X-data-parallel-rank")
START_HEADER = istr("X-Request-Start")

LOOPBACK = frozenset({"127.0.0.1", "::1"})


class BacklogWatcher(Protocol):
    """Watches the unsent bytes of a connection."""

    def started(self) -> None:
        """More bytes wait than the transport's limit."""
        ...

    def ended(self) -> None:
        """Few bytes wait again."""
        ...


class TimestampedConnection(BaseProtocol):
    """Records the time of the latest received data, and reports unsent bytes to a watcher."""

    __slots__ = ("_wire", "backlog", "received_at_s")

    def __init__(self, wire: WriteCoalescer) -> None:
        super().__init__(asyncio.get_running_loop())
        self.received_at_s: float | None = None
        """Time of the latest received data, on the monotonic clock."""
        self.backlog: BacklogWatcher | None = None
        """Watcher of unsent bytes, if any."""
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        self.received_at_s = time.monotonic()
        self._wire.num_received += 1

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.backlog is not None:
            self.backlog.started()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.backlog is not None:
            self.backlog.ended()


def arrived_at(request: web.Request, driver: Driver) -> Micros:
    """Return the arrival of `request`, whose body has been read, on the driver's clock: the instant of its last byte.

    A client on this machine may report the instant of sending in the header that proxies use. The transfer time then
    does not enter the simulation, so that equal loads give equal runs.
    """
    transport = request.transport
    connection = transport.get_protocol() if transport is not None else None
    if not isinstance(connection, TimestampedConnection) or connection.received_at_s is None:
        return driver.clock()
    received_at_s = connection.received_at_s
    sent_at_s = _sent_at(request)
    if sent_at_s is not None and 0 <= received_at_s - sent_at_s <= MAX_TRANSIT_S:
        return driver.instant_at(sent_at_s)
    return driver.instant_at(received_at_s)


def requested_rank(request: web.Request) -> int | None:
    """The data-parallel rank in a header; None without the header or with a value that is no number."""
    requested = header_text(request, RANK_HEADER)
    try:
        return None if requested is None else int(requested)
    except ValueError:
        return None


def _sent_at(request: web.Request) -> float | None:
    """Return the send time that a client on this machine reports in a header, on the monotonic clock."""
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
E2E_TARGET_HEADER = istr("X-Slo-E2e-Ms")
"""Headers that inference gateways read and `blis observe` sends."""
TRACE_PARENT_HEADER = istr("traceparent")
TRACE_STATE_HEADER = istr("tracestate")
"""Headers of W3C trace context."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller metadata from headers; defaults mean absent."""

    rank: int | None = None
    """Requested data-parallel rank or instance; None leaves the choice to the server."""
    slo_class: str = ""
    tenant: str = ""
    slo_target_us: Micros = 0
    slo_e2e_us: Micros = 0
    traceparent: str = ""
    """The W3C trace context of the client's span."""
    tracestate: str = ""

    def applied_to(self, request: Request) -> Request:
        """Return the request with the caller's metadata for admission and scheduling."""
        if not (self.slo_class or self.tenant or self.slo_target_us or self.slo_e2e_us):
            return request
        # Requests without a priority have a priority of 0.
        priority = None if self.slo_class and not request.priority else request.priority
        return request._replace(
            slo_class=self.slo_class,
            tenant=self.tenant,
            slo_target_us=self.slo_target_us,
            slo_e2e_us=self.slo_e2e_us or request.slo_e2e_us,
            priority=priority,
        )


UNKNOWN_CALLER = Caller()


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request. An SLO target that is no number counts as absent."""
    headers = request.headers
    rank, target_ms = requested_rank(request), headers.get(TARGET_HEADER, "")
    slo_class, tenant = headers.get(CLASS_HEADER, ""), headers.get(TENANT_HEADER, "")
    e2e_ms, traceparent = headers.get(E2E_TARGET_HEADER, ""), headers.get(TRACE_PARENT_HEADER, "")
    if rank is None and not (target_ms or slo_class or tenant or e2e_ms or traceparent):
        return UNKNOWN_CALLER
    return Caller(
        rank=rank,
        slo_class=slo_class,
        tenant=tenant,
        slo_target_us=_target_us(target_ms),
        slo_e2e_us=_target_us(e2e_ms),
        traceparent=traceparent,
        tracestate=headers.get(TRACE_STATE_HEADER, ""),
    )


def _target_us(milliseconds: str) -> Micros:
    """Return an SLO target from a header; 0 for text that is no number of milliseconds up to 11 days."""
    found = _MILLISECONDS.fullmatch(milliseconds)
    return 0 if found is None else int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))


_MILLISECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?")

BACKLOG_CHECK_INTERVAL_S = 0.1
"""Interval between two checks of a stream with unsent bytes."""
REPORT_AFTER_S = 1.0
"""Cut streams within this time share a log line."""

_logger = logging.getLogger(__name__)


class Backlog:
    """Limits the unsent bytes of one stream, independent of the size of one event.

    Checks begin when half of the limit is unsent, so a stream that is read costs nothing.
    """

    def __init__(
        self, transport: asyncio.Transport, connection: TimestampedConnection, limit_bytes: int, cut: Callable[[], None]
    ) -> None:
        connection.backlog = self
        self._transport = transport
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._allowed_bytes = limit_bytes
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(limit_bytes // 2)

    def started(self) -> None:
        """More than half of the limit is unsent; a single large event may cause it."""
        waiting = self._transport.get_write_buffer_size()
        self._allowed_bytes = max(self._limit_bytes, waiting + self._limit_bytes // 2)
        self._schedule_check()

    def ended(self) -> None:
        """Few bytes are unsent again, or the stream has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """Stop watching."""
        self._connection.backlog = None
        self.ended()

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BACKLOG_CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > self._allowed_bytes:
            self._transport.abort()
            self._cut()
        else:
            self._schedule_check()


class SlowReaders:
    """The limit of unsent bytes per stream, and the number of streams that were cut for exceeding it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_cut = 0
        self._num_reported = 0

    def watch(self, transport: asyncio.Transport) -> Backlog | None:
        """Return a context in which the connection is cut when too many bytes are unsent."""
        connection = transport.get_protocol()
        if not isinstance(connection, TimestampedConnection):
            return None
        return Backlog(transport, connection, self.limit_bytes, self._cut)

    def _cut(self) -> None:
        if self.num_cut == self._num_reported:
            asyncio.get_running_loop().call_later(REPORT_AFTER_S, self._report)
        self.num_cut += 1

    def _report(self) -> None:
        num_new, self._num_reported = self.num_cut - self._num_reported, self.num_cut
        limit = f"more than {self.limit_bytes // 1024:,} KiB unread"
        _logger.warning("streams cut because their clients left %s: %d", limit, num_new)
