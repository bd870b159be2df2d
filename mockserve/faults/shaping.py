"""A transport that lets a reply go wrong on its way: late, in pieces, garbled or not at all.

It stands in front of the connection's own transport for as long as one faulty reply takes.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mockserve.options.faults import FaultSettings

_END_OF_HEAD = b"\r\n\r\n"


@dataclass(slots=True)
class _Waiting:
    """Bytes that leave in pieces, with a pause before each piece."""

    pause_s: float
    data: memoryview
    piece_bytes: int

    def take(self) -> memoryview:
        """The next piece."""
        piece, self.data = self.data[: self.piece_bytes], self.data[self.piece_bytes :]
        return piece


class ShapedTransport(asyncio.Transport):
    """Takes what one reply writes. `kind` is one of `kinds.SHAPES`."""

    def __init__(self, inner: asyncio.Transport, kind: str, settings: FaultSettings) -> None:
        super().__init__()
        self._inner = inner
        self._kind = kind
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        """Bytes that may not leave yet."""
        self._num_events = 0
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._has_head = False

    # --- what a reply does ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = bytes(data)
        if not self._has_head:
            self._has_head = True
            head, found, rest = rest.partition(_END_OF_HEAD)
            self._send(0.0, head + found)
            if not rest:
                return
        self._event(rest)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    async def drained(self) -> None:
        """Return when all that was written has left, or the connection is gone."""
        await self._drained.wait()

    def _event(self, data: bytes) -> None:
        settings = self._settings
        number, self._num_events = self._num_events, self._num_events + 1
        # A reply that is no stream is one event, and that is the one to go wrong.
        is_the_one = number == (settings.after_events if self._is_stream(data) else 0)
        if self._kind == "slow_first_token":
            self._send(settings.first_token_delay_s if number == 0 else 0.0, data)
        elif self._kind == "trickle":
            self._send(settings.trickle_pause_s, data, settings.trickle_bytes)
        elif self._kind == "stall":
            self._send(settings.stall_s if is_the_one else 0.0, data)
        elif self._kind == "disconnect" and is_the_one:
            self.abort()
        elif self._kind == "malformed" and is_the_one:
            # As long as before, so that HTTP itself stays in order.
            self._send(0.0, data.replace(b"{", b"<", 1))
        else:
            self._send(0.0, data)

    def _is_stream(self, data: bytes) -> bool:
        return self._num_events > 1 or b"data: " in data[:16] or b"event: " in data[:16]

    # --- what leaves when ---

    def _send(self, pause_s: float, data: bytes, piece_bytes: int = 0) -> None:
        """Let bytes leave after a pause, all together or in pieces of that size with the pause before each."""
        if self._inner.is_closing() or not data:
            return  # a closed transport refuses to write
        if pause_s == 0 and not self._waiting:
            self._inner.write(data)
            return
        self._waiting.append(_Waiting(pause_s, memoryview(data), piece_bytes or len(data)))
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(pause_s, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        waiting = self._waiting
        while waiting:
            if self._inner.is_closing():
                waiting.clear()
                break
            first = waiting[0]
            self._inner.write(first.take())
            if not first.data:
                waiting.popleft()
            if waiting and waiting[0].pause_s:
                self._timer = self._loop.call_later(waiting[0].pause_s, self._pause_over)
                return
        self._drained.set()

    def abort(self) -> None:
        self.stop()
        self._inner.abort()

    def stop(self) -> None:
        """Nothing more leaves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._drained.set()

    # --- what the connection's own transport does ---

    def close(self) -> None:
        self.stop()
        self._inner.close()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)
