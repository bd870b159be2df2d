"""Frames due in one wake leave in one write per stream and are measured; on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import HttpVersion11, web

from mockserve.metrics.counters import Lateness
from mockserve.realtime.driver import MAX_QUIET_TURNS, WriteCoalescer
from mockserve.reply.reply import DELIVERY
from mockserve.reply.stream import SSEWriter


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def ends() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A connection: the server's transport and the client's socket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    yield transport, theirs
    transport.abort()
    theirs.close()


def unopened(wire: WriteCoalescer) -> SSEWriter:
    request: Any = SimpleNamespace(version=HttpVersion11, app={DELIVERY: SimpleNamespace(wire=wire)})
    return SSEWriter(request)


def outlet(transport: asyncio.Transport, wire: WriteCoalescer, head: bytes = b"") -> SSEWriter:
    writer = unopened(wire)
    writer.open(web.StreamResponse(), transport, head)
    return writer


async def test_events_before_a_stream_begins_leave_when_it_begins(
    ends: tuple[asyncio.Transport, socket.socket],
) -> None:
    transport, client = ends
    wire = WriteCoalescer(Lateness())
    stream = unopened(wire)
    stream.write(b"1")
    wire.is_held = True
    stream.write_all([b"2", b"3"])
    wire.release()
    stream.open(web.StreamResponse(), transport, b"head ")
    assert client.recv(100) == b"head 123"


async def test_frames_of_one_wake_leave_at_its_end(ends: tuple[asyncio.Transport, socket.socket]) -> None:
    transport, client = ends
    wire = WriteCoalescer(Lateness())
    stream = outlet(transport, wire)
    wire.is_held = True
    stream.write(b"a")
    stream.write_all([b"c", b"d"])
    with pytest.raises(BlockingIOError):
        client.recv(100)
    wire.release()
    assert client.recv(100) == b"acd"
    stream.write(b"e")
    assert client.recv(100) == b"e", "outside of a wake nothing is kept back"


async def test_each_frame_is_measured_when_it_has_left(ends: tuple[asyncio.Transport, socket.socket]) -> None:
    transport, client = ends
    clock = Clock()
    wire = WriteCoalescer(Lateness(), monotonic=clock)
    stream = outlet(transport, wire)
    wire.is_held = True
    wire.due_s = 99.5
    stream.write_all([b"1", b"2"])
    wire.due_s = 99.9
    stream.write(b"3")
    clock.now_s = 101.0
    wire.release()
    assert wire.lateness.histogram.count == 3
    assert wire.lateness.histogram.total == pytest.approx(3 * 1.5), "the first of them was due at 99.5"
    assert client.recv(100) == b"123"


async def test_without_instants_nothing_is_measured(ends: tuple[asyncio.Transport, socket.socket]) -> None:
    transport, client = ends
    wire = WriteCoalescer(Lateness(), is_timed=False)
    wire.is_held = True
    outlet(transport, wire).send(b"x")
    wire.release()
    wire.measure()
    assert wire.lateness.histogram.count == 0
    assert client.recv(100) == b"1\r\nx\r\n"


async def test_a_client_that_is_gone_gets_no_bytes(ends: tuple[asyncio.Transport, socket.socket]) -> None:
    transport, client = ends
    wire = WriteCoalescer(Lateness())
    stream = outlet(transport, wire)
    wire.is_held = True
    stream.write(b"late")
    transport.close()
    wire.release()
    await asyncio.sleep(0)
    assert client.recv(100) == b""


def test_news_are_reported_once_and_never_for_ever() -> None:
    wire = WriteCoalescer(Lateness())
    assert not wire.has_received_bytes(MAX_QUIET_TURNS)
    wire.num_received += 2
    assert wire.has_received_bytes(MAX_QUIET_TURNS)
    assert not wire.has_received_bytes(MAX_QUIET_TURNS)
    reported = 0
    for _ in range(3 * MAX_QUIET_TURNS):
        wire.num_received += 1
        reported += wire.has_received_bytes(MAX_QUIET_TURNS)
    assert 0 < reported < 3 * MAX_QUIET_TURNS


async def test_head_and_end_of_a_stream_leave_with_its_events(ends: tuple[asyncio.Transport, socket.socket]) -> None:
    transport, client = ends
    wire = WriteCoalescer(Lateness())
    stream = outlet(transport, wire, b"head ")
    wire.is_held = True
    stream.write(b"event ")
    stream.send_head()
    stream.finish()
    with pytest.raises(BlockingIOError):
        client.recv(100)
    wire.release()
    assert client.recv(100) == b"head event 0\r\n\r\n"
    assert wire.lateness.histogram.count == 1, "they are no events"
    stream.finish()
    with pytest.raises(BlockingIOError):
        client.recv(100)


async def test_the_head_of_a_stream_that_failed_before_it_is_not_sent(
    ends: tuple[asyncio.Transport, socket.socket],
) -> None:
    transport, client = ends
    stream = outlet(transport, WriteCoalescer(Lateness()), b"head ")
    assert stream.forget_head()
    stream.send_head()
    with pytest.raises(BlockingIOError):
        client.recv(100)


@pytest.mark.parametrize("is_timed", [True, False])
async def test_a_head_leaves_with_the_first_event_or_soon_without_one(
    ends: tuple[asyncio.Transport, socket.socket], is_timed: bool
) -> None:
    """Both of two streams: one has an event in the first wake, the other has none at all."""
    transport, client = ends
    wire = WriteCoalescer(Lateness(), is_timed)
    busy, _idle = (outlet(transport, wire, head) for head in (b"busy ", b"idle "))
    wire.is_held = True
    busy.write(b"event ")
    wire.release()
    assert client.recv(100) == b"busy event "
    assert await asyncio.get_running_loop().sock_recv(client, 100) == b"idle "
