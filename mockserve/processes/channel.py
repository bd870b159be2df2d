"""Messages between two processes of ours over a socket: all of one turn of the event loop travel together."""

import asyncio
import pickle
import socket
from collections.abc import Callable
from typing import Any, cast

LENGTH_BYTES = 4


class Channel(asyncio.Protocol):
    """One end. `heard` is given each message in order, and `ended` is called when the other end has gone.

    The socket must be one that only processes of this server have: what comes is unpickled.
    """

    def __init__(self, heard: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self._heard = heard
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self.sent: Callable[[], None] = _nothing
        """Called when what was told leaves: nothing can be added to those messages any more."""
        self._waiting: list[Any] = []
        self._received = bytearray()
        self._gone = asyncio.Event()

    def tell(self, message: object) -> None:
        """Send with whatever else is told in this turn. Nothing happens when the other end has gone."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(message)

    def close(self) -> None:
        """Send what waits, and end: then nobody is told of it."""
        self._ended = _nothing
        if self._waiting:
            self._send()
        if self._transport is not None:
            self._transport.close()

    async def leave(self) -> None:
        """Close, and return when all has been sent."""
        self.close()
        await self._gone.wait()

    def _send(self) -> None:
        messages, self._waiting = self._waiting, []
        self.sent()
        if messages and self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._ended()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(received[start:begin], "little")
            if len(received) < end:
                break
            start = end
            for message in pickle.loads(received[begin:end]):
                self._heard(message)
        del received[:start]


def _nothing() -> None:
    """Nobody wants to know."""


async def open_channel(end: socket.socket, heard: Callable[[Any], None], ended: Callable[[], None]) -> Channel:
    """A channel over one end of a socket pair."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: Channel(heard, ended), sock=end)
    return channel
