"""Bytes that wait for a client that does not read, on real sockets: bounded, whatever the size of one event."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mockserve.http.connection import BACKLOG_CHECK_INTERVAL_S, REPORT_AFTER_S, SlowReaders, TimestampedConnection
from mockserve.metrics.counters import Lateness
from mockserve.realtime.driver import WriteCoalescer

LIMIT_BYTES = 100_000
EVENT = b"x" * 1000
LARGE = 50 * LIMIT_BYTES
"""More than the kernel takes of an event."""


@asynccontextmanager
async def stream(slow_readers: SlowReaders) -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A connection that is watched, and the client's end, which is never read."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: TimestampedConnection(WriteCoalescer(Lateness())), sock=ours
    )
    theirs.setblocking(False)
    with theirs:
        connection = transport.get_protocol()
        assert isinstance(connection, TimestampedConnection)
        connection.limit_backlog(slow_readers)
        yield transport, theirs
        transport.abort()
        connection.end_limit()


async def looked_at() -> None:
    await asyncio.sleep(3 * BACKLOG_CHECK_INTERVAL_S)


async def test_a_client_that_leaves_more_than_the_limit_is_cut() -> None:
    slow_readers = SlowReaders(LIMIT_BYTES)
    async with stream(slow_readers) as (transport, _):
        for _ in range(LIMIT_BYTES // len(EVENT) + 50):
            transport.write(EVENT)
        await looked_at()
        assert transport.is_closing()
        assert slow_readers.num_cut == 1


async def test_a_client_that_leaves_less_is_not() -> None:
    slow_readers = SlowReaders(LIMIT_BYTES)
    async with stream(slow_readers) as (transport, _):
        for _ in range(LIMIT_BYTES // len(EVENT) - 10):
            transport.write(EVENT)
        await looked_at()
        assert not transport.is_closing()
        assert slow_readers.num_cut == 0


async def test_one_event_may_be_larger_than_the_limit_but_not_what_piles_up_behind_it() -> None:
    slow_readers = SlowReaders(LIMIT_BYTES)
    async with stream(slow_readers) as (transport, _):
        transport.write(b"x" * LARGE)
        await asyncio.sleep(0)
        transport.write(EVENT)
        await looked_at()
        assert not transport.is_closing()
        for _ in range(LIMIT_BYTES // len(EVENT)):
            transport.write(EVENT)
        await looked_at()
        assert transport.is_closing()


async def test_a_client_that_catches_up_has_all_of_the_limit_again() -> None:
    slow_readers = SlowReaders(LIMIT_BYTES)
    async with stream(slow_readers) as (transport, theirs):
        loop = asyncio.get_running_loop()
        for _ in range(4):
            left = 80 * len(EVENT)
            transport.write(b"x" * left)
            await looked_at()
            while left:
                left -= len(await loop.sock_recv(theirs, left))
        assert slow_readers.num_cut == 0


async def test_streams_that_are_cut_together_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    slow_readers = SlowReaders(LIMIT_BYTES)
    with caplog.at_level(logging.WARNING):
        async with stream(slow_readers) as (first, _), stream(slow_readers) as (second, _):
            first.write(EVENT)
            for transport in (first, second):
                for _ in range(3 * LIMIT_BYTES // len(EVENT)):
                    transport.write(EVENT)
            await looked_at()
        await asyncio.sleep(REPORT_AFTER_S)
    assert caplog.messages == ["streams cut because their clients left more than 97 KiB unread: 2"]
