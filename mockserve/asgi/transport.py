"""A transport in memory: a connection of the server writes to it, and its reader passes the bytes on."""

import asyncio
from collections.abc import Mapping
from typing import Any

HIGH_WATER_BYTES = 64 * 1024
"""Unread bytes beyond which the connection is asked to pause, as by a socket's transport."""


class MemoryTransport(asyncio.Transport):
    """The server's end of a connection without a socket."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(about)
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol | None = None
        self._unread = bytearray()
        self._come = asyncio.Event()
        self._high_bytes = HIGH_WATER_BYTES
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False

    async def read(self) -> bytes:
        """The next bytes that were written; empty at the end of the connection."""
        while not self._unread and not self._is_closing:
            self._come.clear()
            await self._come.wait()
        data = bytes(self._unread)
        self._unread.clear()
        self._note_size()
        if not data or self._is_closing:
            self._lose()
        return data

    # --- what a connection does with a transport ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._unread += data
        self._come.set()
        self._note_size()

    def close(self) -> None:
        """End once what was written is read."""
        self._is_closing = True
        self._come.set()

    def abort(self) -> None:
        """End at once."""
        self._unread.clear()
        self.close()
        self._lose()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._note_size()

    def pause_reading(self) -> None:
        """Do nothing: one request comes on a connection, and it has come."""

    def resume_reading(self) -> None:
        """Do nothing: reading is never paused."""

    def _note_size(self) -> None:
        if not isinstance(self._protocol, asyncio.Protocol):
            return
        if not self._is_paused and len(self._unread) > self._high_bytes:
            self._is_paused = True
            self._protocol.pause_writing()
        elif self._is_paused and len(self._unread) <= self._high_bytes // 4:
            self._is_paused = False
            self._protocol.resume_writing()

    def _lose(self) -> None:
        if not self._is_lost and isinstance(self._protocol, asyncio.Protocol):
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)
