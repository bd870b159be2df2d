"""Writer of a stream's events: directly to the transport, bypassing aiohttp's own writer."""

from asyncio import Transport
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from aiohttp import HttpVersion11, web

from mockserve.faults.shaping import ShapedTransport
from mockserve.realtime.deliveries import WriteCoalescer
from mockserve.replies.frames import http_chunk
from mockserve.serving.service import SERVICE
from mockserve.transport.aiohttp_internals import mark_reply_as_begun
from mockserve.transport.headers import EVENT_STREAM

END_OF_CHUNKS = b"0\r\n\r\n"


class Listener(Protocol):
    """An observer of a stream's writes."""

    def note_activity(self) -> None:
        """Record that bytes are sent."""
        ...


class SSEWriter:
    """Writes the events of one stream. Events of one wake-up of the driver are sent in one write, unless the client has
    disconnected."""

    __slots__ = (
        "_end",
        "_ends_response",
        "_frames",
        "_head",
        "_transport",
        "_wire",
        "_writes_separately",
        "chunked",
        "due_s",
        "keep_alive",
        "response",
    )  # fmt: skip

    def __init__(
        self, response: web.StreamResponse, transport: Transport, chunked: bool, wire: WriteCoalescer, head: bytes = b""
    ) -> None:
        """`head` is sent with the first event or by `send_head`; None if it has been sent already."""
        self.response = response
        self.chunked = chunked
        """Whether each event must be wrapped as an HTTP chunk."""
        self.due_s = 0.0
        """Instant at which the first buffered frame was due."""
        self.keep_alive: Listener | None = None
        self._transport = transport
        self._writes_separately = isinstance(transport, ShapedTransport)  # which counts events by writes
        self._wire = wire
        self._head = head
        self._ends_response = bool(head)
        self._end = b""
        """The bytes that end the stream; empty while events may follow."""
        self._frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write bytes unchanged."""
        wire = self._wire
        if wire.is_held:
            frames = self._frames
            if not frames:
                self.due_s = wire.due_s
                wire.add(self)
            frames.append(data)
        else:
            self._write_frames([data])

    def write_all(self, frames: list[bytes]) -> None:
        """Write one or more events as they are."""
        if not self._wire.is_held:
            self.write(b"".join(frames))
            return
        self.write(frames[0])
        self._frames += frames[1:]

    def send(self, data: bytes) -> None:
        """Write one event."""
        self.write(http_chunk(data) if self.chunked else data)

    def leave(self) -> int:
        """Send all buffered frames. Returns the number of frames."""
        frames, self._frames = self._frames, []
        self._write_frames(frames)
        return len(frames)

    def send_head(self) -> None:
        """Send the head, unless an event has sent it."""
        if self._head and not self._frames:
            self._write_frames([])

    def forget_head(self) -> bool:
        """Drop the head, if it has not been sent. Returns whether it was still unsent."""
        head, self._head = self._head, b""
        return bool(head)

    def finish(self) -> None:
        """End the response: the end is sent with buffered frames, or at once."""
        if self._ends_response:
            self._ends_response = False
            self._end = END_OF_CHUNKS
            if not self._frames:
                self._write_frames([])

    def break_off(self) -> None:
        """Send buffered frames, then close the connection without the end of the response."""
        self._ends_response = False
        self.leave()
        self._transport.close()

    def _write_frames(self, frames: list[bytes]) -> None:
        """Send frames in one write, with the head before the first and the end behind the last."""
        head, self._head = self._head, b""
        end, self._end = self._end, b""
        if head or end:
            frames = [each for each in (head, *frames, end) if each]
        if self.keep_alive is not None:
            self.keep_alive.note_activity()
        transport = self._transport
        if not transport.is_closing():
            for data in frames if self._writes_separately else (b"".join(frames),):
                transport.write(data)


class EventOutlet:
    """A stream of events as the response to `request`, which ends with the block.

    Raises ConnectionResetError at once when the client has disconnected.
    """

    __slots__ = ("_backlog", "_outlet", "_request")

    def __init__(self, request: web.Request) -> None:
        self._request = request

    async def __aenter__(self) -> SSEWriter:
        request = self._request
        delivery = request.app[SERVICE].delivery
        chunked = request.version >= HttpVersion11  # once the head is written every version is 1.1
        head = delivery.heads.head_for(request)
        response = delivery.heads.response if head is not None else await _prepare_with_aiohttp(request)
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client left before the first token")
        self._backlog = delivery.slow_readers.watch(transport)
        self._outlet = SSEWriter(response, transport, chunked, delivery.wire, head or b"")
        if head is not None:
            delivery.wire.send_head_soon(self._outlet)
        return self._outlet

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        outlet, request = self._outlet, self._request
        try:
            if kind is None:
                outlet.finish()
                with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
                    await outlet.response.write_eof()
                    await request.writer.drain()
            elif not outlet.forget_head():
                mark_reply_as_begun(request)
        finally:
            if self._backlog is not None:
                self._backlog.leave()


async def _prepare_with_aiohttp(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # the end of the connection is the end of the stream
    await response.prepare(request)
    return response
