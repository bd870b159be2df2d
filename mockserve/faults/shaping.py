"""Faults of replies: drawing a fault for each request, and shaping its reply."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from multidict import istr

from blis_sim.options import OptionError
from mockserve.options.faults import ERRORS, REPLY_FAULTS, FaultSettings

HEADER = istr("X-Blis-Fault")
"""`kind`, or a status, with settings for this request after semicolons: `stall; stall_s=2; after_events=1`."""

STATUS_HEADER = istr("X-Return-Error")
"""A status alone, a header of another mock server."""


class FaultSource:
    """Draws faults by settings that may change at runtime. Equal seeds and requests give equal faults."""

    def __init__(self, settings: FaultSettings, seed: int = 0) -> None:
        self.settings = settings
        self._random = Random(f"faults {seed}")

    def draw(self, headers: Mapping[str, str], by_chance: bool) -> tuple[str, FaultSettings] | None:
        """Return the kind of fault for a request, with its settings. Raises OptionError for an invalid header.

        `by_chance` is False for requests that only get a fault requested by header.
        """
        requested = headers.get(HEADER) or headers.get(STATUS_HEADER)
        if requested is not None:
            return self._requested_fault(requested)
        if not by_chance or not self.settings.rates:
            return None
        point = self._random.random()
        for kind, rate in self.settings.rates.items():
            point -= rate
            if point < 0:
                return kind, self.settings
        return None

    def _requested_fault(self, text: str) -> tuple[str, FaultSettings]:
        kind, *parts = (part.strip() for part in text.split(";"))
        kind = _BY_STATUS.get(kind, kind)
        if kind not in REPLY_FAULTS:
            raise OptionError(f"{HEADER} must be one of {', '.join(REPLY_FAULTS)} or a status of these, got {text!r}")
        changes: dict[str, str] = {}
        for part in filter(None, parts):
            name, _, value = part.partition("=")
            changes[name.strip()] = value.strip()
        return kind, self.settings.changed(changes)


_BY_STATUS = {str(fault.status): kind for kind, fault in reversed(list(ERRORS.items()))}


_END_OF_HEAD = b"\r\n\r\n"


@dataclass(slots=True)
class _PendingBytes:
    """Bytes to send in pieces, with a pause before each piece."""

    pause_s: float
    data: memoryview
    piece_bytes: int

    def take(self) -> memoryview:
        """Remove and return the next piece."""
        piece, self.data = self.data[: self.piece_bytes], self.data[self.piece_bytes :]
        return piece


class ShapedTransport(asyncio.Transport):
    """A transport that applies a fault to the bytes of one reply. `kind` is a key of `SHAPES`."""

    def __init__(self, inner: asyncio.Transport, kind: str, settings: FaultSettings) -> None:
        super().__init__()
        self._inner = inner
        self._kind = kind
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_PendingBytes] = deque()
        """Delayed bytes."""
        self._num_events = 0
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._has_head = False

    # --- methods that a reply calls ---

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
        """Return when all written bytes have been sent, or the connection is closed."""
        await self._drained.wait()

    def _event(self, data: bytes) -> None:
        settings = self._settings
        number, self._num_events = self._num_events, self._num_events + 1
        # A reply that is no stream counts as one event, which is faulty.
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
            # The length is unchanged, so that the HTTP framing stays valid.
            self._send(0.0, data.replace(b"{", b"<", 1))
        else:
            self._send(0.0, data)

    def _is_stream(self, data: bytes) -> bool:
        return self._num_events > 1 or b"data: " in data[:16] or b"event: " in data[:16]

    # --- delays ---

    def _send(self, pause_s: float, data: bytes, piece_bytes: int = 0) -> None:
        """Write bytes after a pause, at once or in pieces of `piece_bytes` with the pause before each."""
        if self._inner.is_closing() or not data:
            return  # a closed transport refuses to write
        if pause_s == 0 and not self._waiting:
            self._inner.write(data)
            return
        self._waiting.append(_PendingBytes(pause_s, memoryview(data), piece_bytes or len(data)))
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
        """Stop writing and drop the waiting frames."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._drained.set()

    # --- methods delegated to the connection's transport ---

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
