"""Messages over a socket, from the process that passes bytes on to the process that records them."""

import asyncio
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from observe.event_loop import Clock, Nanos
from observe.options import OutputPaths
from observe.proxy.cache_canary import CacheFigures
from traces import TraceHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The KV cache of one engine, and how to reach its server."""

    block_tokens: int
    num_blocks: int
    ca_file: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Description of a recording: its files, and the rules for them."""

    paths: OutputPaths
    header: TraceHeader
    clock: Clock
    upstreams: tuple[str, ...]
    redact: tuple[str, ...]
    tenant_header: str
    tenant_salt: str
    rotate_bytes: float
    rotate_s: float
    resumes: bool
    compares_vectors: bool = False
    """Whether the model scores texts by their vectors, as far as known."""
    cache: CacheSettings | None = None
    """Of the engines behind all upstreams, where their prefix caches are checked."""


@dataclass(slots=True)
class RecordingReport:
    """Figures of a recording. `problem` is why it could not begin, `failure` why it ended early."""

    num_requests: int = 0
    num_earlier: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    num_sessions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_other_exchanges: int = 0
    num_unread: int = 0
    """Requests whose replies could not be read to their end."""
    unread: str = ""
    """Why the first of them could not."""
    num_parts: int = 0
    cache: list[CacheFigures] = field(default_factory=list)
    """Figures of the prefix cache of each upstream, where it is checked."""
    problem: str = ""
    failure: str = ""


_FRAME = struct.Struct("<BIQI")
_FLUSH_S = 0.002
_FLUSH_BYTES = 1 << 18
_MAX_WAITING_BYTES = 32 << 20


class EventKind(IntEnum):
    """Events on a connection of a client."""

    OPENED = 0
    REQUEST = 1
    REPLY = 2
    CLIENT_GONE = 3
    SERVER_GONE = 4
    DROPPED = 5
    """Bytes were left out, as the recording process did not keep up: the rest of the connection is not recorded."""
    CLIENT_ENDED = 6
    """The client sends no more; it may still read."""
    STOPPED = 7
    """The proxy itself cuts the connection."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that happened. The payload of OPENED is the number of the upstream."""

    kind: EventKind
    connection: int
    at: Nanos
    payload: bytes


class Tap(asyncio.Protocol):
    """Buffers messages and sends them together a few milliseconds later. Messages beyond the limit are dropped and
    counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.num_dropped = 0
        self.is_lost = False
        """Whether the recording process is gone."""
        self.is_closing = False
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._incomplete: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when the socket is ready."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio calls this when the recording process is gone."""
        self.is_lost = True
        self._waiting.clear()

    def pause_writing(self) -> None:
        """Asyncio calls this when much waits to be written; `put` checks the amount itself."""

    def resume_writing(self) -> None:
        """Asyncio calls this when little waits to be written."""

    def put(self, kind: EventKind, connection: int, at: Nanos, payload: bytes = b"") -> None:
        """Hand on one message."""
        transport = self._transport
        if self.is_lost or transport is None:
            return
        if connection in self._incomplete:
            if kind is EventKind.SERVER_GONE:
                self._incomplete.discard(connection)
            return
        if transport.get_write_buffer_size() + self._num_bytes + len(payload) > _MAX_WAITING_BYTES:
            self.num_dropped += 1
            self._incomplete.add(connection)
            kind, payload = EventKind.DROPPED, b""
        self._waiting.append(_FRAME.pack(kind, connection, at, len(payload)))
        self._waiting.append(payload)
        self._num_bytes += len(payload) + _FRAME.size
        if self._num_bytes >= _FLUSH_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._transport is not None and not self.is_lost:
            self._transport.write(b"".join(self._waiting))
        self._waiting = []
        self._num_bytes = 0

    def close(self) -> None:
        """Write buffered messages, then close."""
        self.is_closing = True
        self.flush()
        if self._transport is not None:
            self._transport.close()


class MessageReader:
    """Takes the messages out of bytes that come in pieces cut anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that these bytes complete."""
        self._rest += data
        content = bytes(self._rest)
        start = 0
        while len(content) - start >= _FRAME.size:
            kind, connection, at, size = _FRAME.unpack_from(content, start)
            end = start + _FRAME.size + size
            if end > len(content):
                break
            yield Message(EventKind(kind), connection, at, content[start + _FRAME.size : end])
            start = end
        del self._rest[:start]
