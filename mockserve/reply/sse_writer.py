"""Writer of a stream's events: directly to the transport, bypassing aiohttp's own writer."""

import asyncio
from asyncio import Transport
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import HttpVersion11, web

from mockserve.faults import ShapedTransport
from mockserve.http.aiohttp_internals import mark_reply_as_begun
from mockserve.http.clients import Backlog
from mockserve.http.headers import EVENT_STREAM
from mockserve.reply.delivery import DELIVERY
from mockserve.reply.frames import http_chunk

END_OF_CHUNKS = b"0\r\n\r\n"

COMMENT = b": keep-alive\n\n"
"""vLLM's keep-alive comment; SSE clients ignore it."""


class SSEWriter:
    """The response to `request` as a stream of events, which begins and ends with an `async with` block.

    Events written before the block are kept until it begins. Events of one wake-up of the driver are sent in one write,
    unless the client has disconnected. The block raises ConnectionResetError when the client has disconnected before
    it.
    """

    __slots__ = (
        "_backlog",
        "_comment_s",
        "_comment_timer",
        "_end",
        "_ends_response",
        "_frames",
        "_head",
        "_last_sent_s",
        "_request",
        "_transport",
        "_wire",
        "_writes_separately",
        "chunked",
        "due_s",
        "is_open",
        "response",
    )  # fmt: skip

    response: web.StreamResponse
    _transport: Transport

    def __init__(self, request: web.Request) -> None:
        self.chunked = request.version >= HttpVersion11  # once the head is written every version is 1.1
        self.is_open = False
        self.due_s = 0.0
        """Instant at which the first buffered frame was due."""
        self._request = request
        self._wire = request.app[DELIVERY].wire
        self._writes_separately = False
        self._head = b""
        self._ends_response = False
        self._end = b""
        """The bytes that end the stream; empty while events may follow."""
        self._frames: list[bytes] = []
        self._comment_s = 0
        self._comment_timer: asyncio.TimerHandle | None = None
        self._last_sent_s = 0.0
        self._backlog: Backlog | None = None

    async def __aenter__(self) -> Self:
        request = self._request
        delivery = request.app[DELIVERY]
        head = delivery.heads.head_for(request)
        response = delivery.heads.response if head is not None else await _prepare_with_aiohttp(request)
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client left before the first token")
        self._backlog = delivery.slow_readers.watch(transport)
        self.open(response, transport, head or b"")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._comment_timer is not None:
            self._comment_timer.cancel()
            self._comment_timer = None
        try:
            if kind is None:
                self.finish()
                with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
                    await self.response.write_eof()
                    await self._request.writer.drain()
            elif not self.forget_head():
                mark_reply_as_begun(self._request)
        finally:
            if self._backlog is not None:
                self._backlog.leave()

    def open(self, response: web.StreamResponse, transport: Transport, head: bytes = b"") -> None:
        """Let events go to `transport`. `head` is sent with the first event or soon; it is empty if it has been sent
        already."""
        self.is_open = True
        self.response = response
        self._transport = transport
        self._writes_separately = isinstance(transport, ShapedTransport)  # which counts events by writes
        self._head = head
        self._ends_response = bool(head)
        if self._frames:
            self.leave()
        elif head:
            self._wire.send_head_soon(self)

    def send_comments(self, interval_s: int) -> None:
        """Send a comment after each `interval_s` seconds without data; 0 for never."""
        if interval_s:
            self._comment_s = interval_s
            self._last_sent_s = asyncio.get_running_loop().time()
            self._schedule_comment()

    def _schedule_comment(self) -> None:
        loop = asyncio.get_running_loop()
        self._comment_timer = loop.call_at(self._last_sent_s + self._comment_s, self._send_comment)

    def _send_comment(self) -> None:
        if asyncio.get_running_loop().time() >= self._last_sent_s + self._comment_s:
            self.send(COMMENT)
        self._schedule_comment()

    def write(self, data: bytes) -> None:
        """Write bytes unchanged."""
        wire, frames = self._wire, self._frames
        if wire.is_held or not self.is_open:
            if not frames and self.is_open:
                self.due_s = wire.due_s
                wire.departing.append(self)
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
        if self._comment_timer is not None:
            self._last_sent_s = asyncio.get_running_loop().time()
        transport = self._transport
        if not transport.is_closing():
            for data in frames if self._writes_separately else (b"".join(frames),):
                transport.write(data)


async def _prepare_with_aiohttp(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # the end of the connection is the end of the stream
    await response.prepare(request)
    return response
