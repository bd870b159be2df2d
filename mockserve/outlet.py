"""Where the events of a stream leave: straight to the transport, past the library's own writer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import HttpVersion11, web

from mockserve.faults.shaping import ShapedTransport
from mockserve.frames import http_chunk
from mockserve.routes.shared import SERVICE
from mockserve.wire import Wire

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Outlet:
    """The events of one stream. What is due in one wake of the driver leaves in one write; none to a client gone."""

    __slots__ = ("_frames", "_keeps_apart", "_transport", "_wire", "chunked", "due_s", "response")

    def __init__(self, response: web.StreamResponse, transport: asyncio.Transport, chunked: bool, wire: Wire) -> None:
        self.response = response
        self.chunked = chunked
        """Whether each event must be wrapped as an HTTP chunk."""
        self.due_s = 0.0
        """When the first of the frames that are kept back was due."""
        self._transport = transport
        self._keeps_apart = isinstance(transport, ShapedTransport)  # which counts events by writes
        self._wire = wire
        self._frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        wire = self._wire
        if wire.is_held:
            frames = self._frames
            if not frames:
                self.due_s = wire.due_s
                wire.add(self)
            frames.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def write_all(self, frames: list[bytes]) -> None:
        """One or more events as they are."""
        if not self._wire.is_held:
            self.write(b"".join(frames))
            return
        self.write(frames[0])
        self._frames += frames[1:]

    def send(self, data: bytes) -> None:
        """One event."""
        self.write(http_chunk(data) if self.chunked else data)

    def leave(self) -> int:
        """Send what was kept back. Returns how many frames that were."""
        frames, self._frames = self._frames, []
        transport = self._transport
        if not transport.is_closing():
            for data in frames if self._keeps_apart else (b"".join(frames),):
                transport.write(data)
        return len(frames)


@asynccontextmanager
async def event_outlet(request: web.Request) -> AsyncIterator[Outlet]:
    """A stream of events as the response to `request`, which ends when the block does."""
    service = request.app[SERVICE]
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    chunked = request.version >= HttpVersion11
    if chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left before the first token")
    with service.slow_readers.watched(transport):
        yield Outlet(response, transport, chunked, service.wire)
        with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
            await response.write_eof()
