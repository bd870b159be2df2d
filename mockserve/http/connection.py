"""One connection: simple requests are parsed and answered here, aiohttp answers others, a tunnel passes bytes on."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias, cast

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy, istr
from yarl import URL

from blis_sim.engine.units import Micros
from blis_sim.options.memo import Memo
from mockserve.http.aiohttp_internals import AiohttpConnection, BaseProtocol, buffered_request, tcp_keepalive
from mockserve.http.headers import EventResponse
from mockserve.realtime.driver import Driver, WriteCoalescer

MAX_TRANSIT_S = 0.05
"""A reported send time that is older than this is ignored."""
START_HEADER = istr("X-Request-Start")
LOOPBACK = frozenset({"127.0.0.1", "::1"})

BACKLOG_CHECK_INTERVAL_S = 0.1
"""Interval between two checks of a stream with unsent bytes."""
REPORT_AFTER_S = 1.0
"""Cut streams within this time share a log line."""

_logger = logging.getLogger(__name__)


class SlowReaders:
    """The limit of unsent bytes per stream, and the number of streams that were cut for exceeding it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_cut = 0
        self._num_reported = 0

    def count_cut(self) -> None:
        """Count a stream that was cut, and log such streams soon."""
        if self.num_cut == self._num_reported:
            asyncio.get_running_loop().call_later(REPORT_AFTER_S, self._report)
        self.num_cut += 1

    def _report(self) -> None:
        num_new, self._num_reported = self.num_cut - self._num_reported, self.num_cut
        limit = f"more than {self.limit_bytes // 1024:,} KiB unread"
        _logger.warning("streams cut because their clients left %s: %d", limit, num_new)


class TimestampedConnection(BaseProtocol):
    """Records the time of the latest received data, and limits the unsent bytes of a stream.

    The limit is independent of the size of one event. Checks begin when half of it is unsent, so a stream that is read
    costs nothing.
    """

    __slots__ = ("_allowed_bytes", "_backlog_timer", "_slow_readers", "_wire", "received_at_s")

    def __init__(self, wire: WriteCoalescer) -> None:
        super().__init__(asyncio.get_running_loop())
        self.received_at_s: float | None = None
        """Time of the latest received data, on the monotonic clock."""
        self._wire = wire
        self._slow_readers: SlowReaders | None = None
        """The limit during a stream; None otherwise."""
        self._allowed_bytes = 0
        self._backlog_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.received_at_s = time.monotonic()
        self._wire.num_received += 1

    def limit_backlog(self, slow_readers: SlowReaders) -> None:
        """Cut the connection when too many bytes are unsent, until `end_limit`."""
        assert self.transport is not None
        self._slow_readers = slow_readers
        self.transport.set_write_buffer_limits(slow_readers.limit_bytes // 2)

    def end_limit(self) -> None:
        """Stop limiting unsent bytes."""
        self._slow_readers = None
        if self._backlog_timer is not None:
            self._backlog_timer.cancel()
            self._backlog_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._slow_readers is not None and self.transport is not None:
            # More than half of the limit is unsent; a single large event may cause it.
            limit_bytes, waiting = self._slow_readers.limit_bytes, self.transport.get_write_buffer_size()
            self._allowed_bytes = max(limit_bytes, waiting + limit_bytes // 2)
            self._schedule_check()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._backlog_timer is not None:
            self._backlog_timer.cancel()
            self._backlog_timer = None

    def _schedule_check(self) -> None:
        self._backlog_timer = self._loop.call_later(BACKLOG_CHECK_INTERVAL_S, self._check_backlog)

    def _check_backlog(self) -> None:
        self._backlog_timer = None
        transport, slow_readers = self.transport, self._slow_readers
        if transport is None or transport.is_closing() or slow_readers is None:
            return
        if transport.get_write_buffer_size() > self._allowed_bytes:
            transport.abort()
            slow_readers.count_cut()
        else:
            self._schedule_check()


def arrived_at(request: web.Request, driver: Driver) -> Micros:
    """Return the arrival of `request`, whose body has been read, on the driver's clock: the instant of its last byte.

    A client on this machine may report the instant of sending in the header that proxies use. The transfer time then
    does not enter the simulation, so that equal loads give equal runs.
    """
    transport = request.transport
    connection = transport.get_protocol() if transport is not None else None
    if not isinstance(connection, TimestampedConnection) or connection.received_at_s is None:
        return driver.clock()
    received_at_s = connection.received_at_s
    sent_at_s = _sent_at(request) if START_HEADER in request.headers else None
    if sent_at_s is not None and 0 <= received_at_s - sent_at_s <= MAX_TRANSIT_S:
        return driver.instant_at(sent_at_s)
    return driver.instant_at(received_at_s)


def _sent_at(request: web.Request) -> float | None:
    """Return the send time that a client on this machine reports in a header, on the monotonic clock."""
    stamp = request.headers.get(START_HEADER, "")
    if not stamp.startswith("t=") or request.remote not in LOOPBACK:
        return None
    try:
        unix_time_s = int(stamp[2:]) / 1e6
    except ValueError:
        return None
    return unix_time_s - time.time() + time.monotonic()


# Keys with space behind them, in requests that aiohttp parses. Pure: changes bytes on their way to aiohttp.
#
# vLLM's server takes the space for a part of the key, which then is another one. aiohttp removes it, so that the key
# would be accepted; a key of this kind reaches aiohttp as an empty one.

_AUTHORIZATION_FIELD = b"authorization:"
_MAX_LINE_BYTES = 64 * 1024
MOST_PARTS = 1000
"""Lines, bodies and chunks that are read at a time, which takes two milliseconds."""
_LINE_END = b"\r\n"


class _Part(Enum):
    """The part of a request to which the next bytes belong."""

    HEAD = auto()
    BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    TRAILER = auto()
    OTHER = auto()
    """Something else for good: another protocol, or no HTTP."""


class KeyFields:
    """The bytes of one connection in order. Cost: O(1) for each line of a head and each chunk, and a copy of bytes."""

    __slots__ = ("_held", "_is_chunked", "_left", "_length", "_line", "_part")

    def __init__(self) -> None:
        self._part = _Part.HEAD
        self._line = b""
        """The beginning of an unfinished line that has been passed on."""
        self._held = b""
        """The beginning of an unfinished line that may be a key."""
        self._left = 0
        """Bytes to come of a body or a chunk."""
        self._length, self._is_chunked = 0, False

    def passed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that aiohttp gets for these, and those to pass later, after `MOST_PARTS` parts."""
        if self._is_other():
            return data, b""
        data, self._held = self._held + data, b""
        found: list[bytes] = []
        place = 0
        while place < len(data) and len(found) < MOST_PARTS:
            if self._part in (_Part.BODY, _Part.CHUNK):
                size = min(self._left, len(data) - place)
                self._left -= size
                found.append(data[place : place + size])
                if not self._left:
                    self._part = _Part.HEAD if self._part is _Part.BODY else _Part.CHUNK_SIZE
            elif self._is_other():
                break
            else:
                end = data.find(b"\n", place)
                size = (len(data) if end < 0 else end + 1) - place
                found.append(self._of_line(data[place : place + size], is_whole=end >= 0))
            place += size
        passed = b"".join(found)
        return (passed + data[place:], b"") if self._is_other() else (passed, data[place:])

    def _is_other(self) -> bool:
        """Whether nothing more is read here."""
        return self._part is _Part.OTHER

    def _of_line(self, text: bytes, is_whole: bool) -> bytes:
        """Return what aiohttp gets for a line or for a part of one."""
        line = self._line + text
        if len(line) > _MAX_LINE_BYTES:
            self._part, self._line = _Part.OTHER, b""
            return text
        if not is_whole:
            beginning = line[: len(_AUTHORIZATION_FIELD)].lower()
            if self._part is _Part.HEAD and not self._line and _AUTHORIZATION_FIELD.startswith(beginning):
                self._held = text
                return b""
            self._line = line
            return text
        self._line = b""
        content = line.rstrip(_LINE_END)
        if self._part is _Part.HEAD:
            return self._of_field(content, text)
        if self._part is _Part.TRAILER:
            if not content:
                self._part = _Part.HEAD
        elif content:  # else the end of the chunk before
            self._begin_chunk(content)
        return text

    def _of_field(self, content: bytes, text: bytes) -> bytes:
        if not content:
            self._left = self._length
            if self._is_chunked:
                self._part = _Part.CHUNK_SIZE
            elif self._left:
                self._part = _Part.BODY
            self._length, self._is_chunked = 0, False
            return text
        name, _, value = content.partition(b":")
        match name.lower():
            case b"content-length":
                self._length = int(value) if value.strip().isdigit() else 0
            case b"transfer-encoding":
                self._is_chunked = b"chunked" in value.lower()
            case b"authorization" if value != value.rstrip(b" \t"):
                return name + b":" + _LINE_END
        return text

    def _begin_chunk(self, content: bytes) -> None:
        try:
            self._left = int(content.partition(b";")[0], 16)
        except ValueError:
            self._part = _Part.OTHER
            return
        self._part = _Part.CHUNK if self._left else _Part.TRAILER


# Parses simple requests. Pure: returns a request, or a status that aiohttp must parse the bytes.

LARGEST_HEAD_BYTES = 8192
LARGEST_BODY_BYTES = 256 * 1024
"""Size limit of simple requests: a larger body arrives in many parts, and reading dominates its cost."""

MOST_KNOWN_HEADS = 512

END_OF_HEAD = b"\r\n\r\n"
_LINE = re.compile(rb"(GET|POST|HEAD|OPTIONS|PUT|PATCH|DELETE) (/[!-~]*) HTTP/1\.1\r\n")
_FIELD = re.compile(r"^([A-Za-z0-9_-]+): ?([!-~][ -~\t]*)\r\n", re.MULTILINE)
"""A header field. Space behind the value is part of it, as in vLLM's server: a key with such a space is another key."""
_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")
_CLOSES = {"keep-alive": False, "close": True}
_FIRST_VALUE_WINS = frozenset({"content-type", "user-agent"})
"""Fields that some clients repeat; vLLM uses the first value."""
_UNSUPPORTED_HEADERS = frozenset(
    {
        "content-encoding", "expect", "http2-settings", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the bytes of a request."""

    most_head_bytes: int = LARGEST_HEAD_BYTES
    most_fields: int = 128
    most_body_bytes: int = LARGEST_BODY_BYTES


class ParseStatus(Enum):
    """Reason why bytes are no simple request."""

    PART = "the beginning of what may become one"
    OTHER = "something else"


class SimpleHead(NamedTuple):
    """The head of a simple request, and the length of its body."""

    method: str
    path: str
    headers: "CIMultiDictProxy[str]"
    num_body_bytes: int
    closes: bool
    """Whether the connection closes after the reply."""


class RequestReader:
    """Parses simple requests. Heads are cached, since many clients send an equal head with every request."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._known = Memo[bytes, SimpleHead](MOST_KNOWN_HEADS)

    def first(self, data: bytes) -> tuple[SimpleHead, bytes, int] | ParseStatus:
        """Parse the first request in `data`. Returns its head, its body, and the length of the whole request."""
        end = data.find(END_OF_HEAD) + 2
        if end < 2:
            return ParseStatus.PART if len(data) <= self._limits.most_head_bytes else ParseStatus.OTHER
        known = data[:end]
        head = self._known.get(known)
        if head is None:
            head = parse_simple_head(known, self._limits)
            if head is None:
                return ParseStatus.OTHER
            self._known.keep(known, head)
        begin = end + 2
        num_bytes = begin + head.num_body_bytes
        if len(data) < num_bytes:
            return ParseStatus.PART
        return head, data[begin:num_bytes], num_bytes


def parse_simple_head(data: bytes, limits: HttpLimits) -> SimpleHead | None:
    """Parse a head without its final empty line; None if it is not simple."""
    line = _LINE.match(data)
    if line is None or len(data) > limits.most_head_bytes:
        return None
    fields = data[line.end() :].decode("latin-1")
    pairs: list[tuple[str, str]] = _FIELD.findall(fields)
    # aiohttp decides about a line that is no field.
    if not len(pairs) == fields.count("\n") <= limits.most_fields:
        return None
    headers = _header_fields(pairs)
    if headers is None:
        return None
    content_length = headers.get(hdrs.CONTENT_LENGTH, "0")
    size, closes = (
        int(content_length) if _SMALL_NUMBER.fullmatch(content_length) else None,
        _CLOSES.get(headers.get(hdrs.CONNECTION, "keep-alive").lower()),
    )
    if size is None or size > limits.most_body_bytes or closes is None:
        return None
    method, path = line.groups()
    return SimpleHead(method.decode(), path.decode(), headers, size, closes)


def bytes_for_aiohttp(head: SimpleHead, body: bytes) -> bytes:
    """Return a simple request as bytes for aiohttp's strict parser, with a Host header."""
    named = {} if hdrs.HOST in head.headers else {hdrs.HOST: "localhost"}
    fields = [f"{name}: {_kept_by_aiohttp(name, value)}" for name, value in (*named.items(), *head.headers.items())]
    lines = [f"{head.method} {head.path} HTTP/1.1", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def _kept_by_aiohttp(name: str, value: str) -> str:
    """Return the value to send to aiohttp, which removes the space that makes a key another one."""
    is_other_key = name.lower() == "authorization" and value != value.rstrip()
    return "" if is_other_key else value


def _header_fields(pairs: list[tuple[str, str]]) -> "CIMultiDictProxy[str] | None":
    """Return the fields by name; None if a field is unsupported or repeated."""
    once: dict[str, tuple[str, str]] = {}
    for name, value in pairs:
        lower = name.lower()
        if lower in _UNSUPPORTED_HEADERS or (lower in once and lower not in _FIRST_VALUE_WINS):
            return None
        once.setdefault(lower, (name, value))
    return CIMultiDictProxy(CIMultiDict(once.values()))


# A client's connection passed on to a server behind a unix socket, byte by byte.

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
"""First line of every HTTP/2 connection, which gRPC's are."""


class Tunnel(asyncio.Protocol):
    """The far end of a client's connection: what the client sends goes to the unix socket, and what comes goes back.

    Neither side is read while the other takes no more bytes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._client: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Bytes of the client from before the far side was open."""

    # --- called for the client's connection ---

    def attach(self, client: asyncio.Transport) -> None:
        """Open the far side, and read nothing of the client until it is open."""
        self._client = client
        client.pause_reading()
        self._opening = asyncio.get_running_loop().create_task(self._connect())

    def from_client(self, data: bytes) -> None:
        """Pass on bytes of the client."""
        if self._far is None:
            self._early.append(data)
        else:
            self._far.write(data)

    def client_lost(self) -> None:
        """Close the far side: the client has gone."""
        self._client = None
        if self._far is not None:
            self._far.close()

    def client_is_slow(self, is_slow: bool) -> None:
        """Stop or go on reading the far side."""
        if self._far is not None and not self._far.is_closing():
            (self._far.pause_reading if is_slow else self._far.resume_reading)()

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, self._path)
        except OSError as error:
            _logger.error("the gRPC server cannot be reached: %s", error.strerror or error)
            if self._client is not None:
                self._client.close()

    # --- called for the far side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._far = far = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio
        if self._client is None:
            far.close()
            return
        far.write(b"".join(self._early))
        self._early.clear()
        self._client.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._client.write(data)

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.pause_reading()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._client is not None:
            self._client.close()


# One connection: simple requests are answered one after the other, aiohttp answers all others.
#
# aiohttp gets a single request if the request is simple except for its path, and returns the connection afterwards.
# The first bytes that are no simple request hand the connection over to aiohttp for good.

Respond: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A path with its handler inside of all middleware."""

    url: URL
    match_info: web.UrlMappingMatchInfo
    respond: Respond


PARTIAL_REQUEST_TIMEOUT_S = 0.02
"""Seconds to wait for the rest of a request before aiohttp takes over, which may answer a head without its body."""
MOST_BYTES_AHEAD = 64 * 1024
"""Bytes that are read ahead of a reply; further bytes stay in the kernel and with the client."""


@dataclass(slots=True)
class HttpListener:
    """State that the connections of one listener share."""

    routes: Mapping[tuple[str, str], FastRoute]
    new_library: Callable[[], AiohttpConnection]
    wire: WriteCoalescer
    reader: RequestReader
    keep_alive_s: float
    first_request_s: float
    """Time limit for the first request of a connection."""
    most_body_bytes: int
    rpc_path: str = ""
    """Unix socket of a gRPC server, which gets the HTTP/2 connections; empty for none."""
    connections: "set[HttpConnection]" = field(default_factory=set)
    is_closing: bool = False
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def left(self, connection: "HttpConnection") -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    async def until_empty(self) -> None:
        """Return when no connection is open."""
        while self.connections:
            self._empty.clear()
            await self._empty.wait()

    def close_idle(self) -> None:
        """Close the connections without a reply, and each of the others when its reply has ended."""
        self.is_closing = True
        for each in tuple(self.connections):
            if each.task is None:
                each.close_unless_delegated()

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for open replies, then cut them. aiohttp closes its own connections."""
        self.close_idle()
        for _ in ("let them end", "let them notice that they are cut"):
            tasks = [each.task for each in self.connections if each.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)
            for task in tasks:
                task.cancel()
        for each in tuple(self.connections):
            each.close_unless_delegated()


class HttpConnection(TimestampedConnection):
    """Parses and answers the requests of a connection in order."""

    __slots__ = (
        "_close_at_s",
        "_http_listener",
        "_is_answering",
        "_is_handed_over",
        "_is_reading_paused",
        "_key_fields",
        "_later",
        "_library",
        "_partial_timer",
        "_rest",
        "_tunnel",
        "_watch",
        "peername",
        "sockname",
        "ssl_context",
        "task",
    )

    def __init__(self, http_listener: HttpListener) -> None:
        super().__init__(http_listener.wire)
        self.task: asyncio.Task[None] | None = None
        """The task that answers a request."""
        self._http_listener = http_listener
        self._rest = b""
        """Received bytes of an incomplete request."""
        self._is_answering = False
        """Whether a request is being answered, here or by aiohttp."""
        self._is_handed_over = False
        self._is_reading_paused = False
        """Whether reading is paused because too many bytes wait."""
        self._key_fields: KeyFields | None = None
        """The reader of keys on their way to aiohttp, once the connection is handed over."""
        self._later = b""
        """Bytes that aiohttp gets in the next turn of the event loop."""
        self._library: AiohttpConnection | None = None
        self._tunnel: Tunnel | None = None
        self._partial_timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        """Timer that closes an idle connection."""
        self._close_at_s = 0.0
        # Attributes of a protocol that aiohttp's requests use.
        self.ssl_context: Any = None
        self.peername: Any = None
        self.sockname: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        get_info = self.transport.get_extra_info
        self.ssl_context, self.peername, self.sockname = (
            get_info("sslcontext"),
            get_info("peername"),
            get_info("sockname"),
        )
        tcp_keepalive(self.transport)
        self._http_listener.connections.add(self)
        self._close_at_s = self._loop.time() + self._http_listener.first_request_s
        self._watch = self._loop.call_at(self._close_at_s, self._check_idle)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._http_listener.left(self)
        self._forget_timers()
        if self._library is not None:
            self._library.connection_lost(exc)
        if self._tunnel is not None:
            self._tunnel.client_lost()
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._library is not None:
            self._library.pause_writing()
        if self._tunnel is not None:
            self._tunnel.client_is_slow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._library is not None:
            self._library.resume_writing()
        if self._tunnel is not None:
            self._tunnel.client_is_slow(False)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._tunnel is not None:
            self._tunnel.from_client(data)
            return
        if self._is_handed_over:
            if self._later:
                self._later += data
            else:
                self._hand(data)
            return
        self._rest = self._rest + data if self._rest else data
        if not self._is_answering:
            self._start_next_request()
        elif len(self._rest) > MOST_BYTES_AHEAD and not self._is_reading_paused and self.transport is not None:
            self._is_reading_paused = True
            self.transport.pause_reading()

    # --- requests ---

    def _start_next_request(self) -> None:
        """Begin with the next request if it is complete."""
        found = self._http_listener.reader.first(self._rest)
        if found is ParseStatus.PART:
            if self._partial_timer is None:
                self._partial_timer = self._loop.call_later(PARTIAL_REQUEST_TIMEOUT_S, self._hand_over)
            return
        if isinstance(found, ParseStatus):
            self._hand_over()
            return
        if self._partial_timer is not None:
            self._partial_timer.cancel()
            self._partial_timer = None
        head, body, num_bytes = found
        self._is_answering = True
        self._rest = self._rest[num_bytes:]
        if self._is_reading_paused and len(self._rest) <= MOST_BYTES_AHEAD:
            self._resume_reading()
        route = self._http_listener.routes.get((head.method, head.path))
        if route is None:
            self._delegate_request(bytes_for_aiohttp(head, body))
        else:
            self.task = self._loop.create_task(self._answer(route, head, body))

    async def _answer(self, route: FastRoute, head: SimpleHead, body: bytes) -> None:
        request = buffered_request(
            head.method,
            head.path,
            head.headers,
            head.closes,
            body,
            route.url,
            route.match_info,
            self,
            self._loop,
            self._http_listener.most_body_bytes,
        )
        keeps_alive = False
        try:
            response = await route.respond(request)
            if not isinstance(response, EventResponse):
                await response.prepare(request)
                await response.write_eof()
            keeps_alive = bool(response.keep_alive)
        except ConnectionError:
            _logger.debug("the client left before its reply")
        except Exception:
            _logger.exception("%s %s failed", head.method, head.path)
        finally:
            self.task = None
            self._answered(keeps_alive)

    def _answered(self, keeps_alive: bool) -> None:
        """Continue after a reply was written or failed."""
        self._is_answering = False
        if not keeps_alive or self._http_listener.is_closing:
            self.close_gracefully()
        elif self._rest:
            self._start_next_request()
        else:
            self._is_idle_now()

    # --- aiohttp ---

    def _hand_over(self) -> None:
        """Pass all further bytes of the connection to aiohttp, or the bytes of HTTP/2 to the gRPC server."""
        self._is_handed_over = True
        self._forget_timers()
        rest, self._rest = self._rest, b""
        if self._http_listener.rpc_path and self.transport is not None and rest.startswith(HTTP2_PREFACE):
            self._tunnel = Tunnel(self._http_listener.rpc_path)
            self._tunnel.attach(self.transport)
            self._tunnel.from_client(rest)
            return
        self._key_fields = KeyFields()
        self._new_library()
        self._hand(rest)
        if self._is_reading_paused and not self._later:
            self._resume_reading()

    def _hand(self, data: bytes) -> None:
        """Hand bytes to aiohttp, no more at a time than it takes in a few milliseconds."""
        assert self._library is not None
        assert self._key_fields is not None
        if self._library.is_upgraded:
            self._library.data_received(data)
            return
        passed, self._later = self._key_fields.passed(data)
        self._library.data_received(passed)
        if self._later and self.transport is not None:
            self._is_reading_paused = True
            self.transport.pause_reading()
            self._loop.call_soon(self._hand_later)

    def _hand_later(self) -> None:
        later, self._later = self._later, b""
        if self.transport is None or self.transport.is_closing():
            return
        self._hand(later)
        if not self._later:
            self._is_reading_paused = False
            if self._library is not None and self._library.takes_bytes:
                self.transport.resume_reading()

    def _delegate_request(self, data: bytes) -> None:
        """Pass one request to aiohttp."""
        library = self._new_library()
        library.on_answered = self._on_aiohttp_reply
        library.data_received(data)

    def _new_library(self) -> AiohttpConnection:
        assert self.transport is not None
        library = self._library = self._http_listener.new_library()
        library.attach(self.transport, is_paused=self._paused)
        return library

    def _on_aiohttp_reply(self) -> None:
        # aiohttp closes a connection that it does not keep alive in its next turn of the event loop.
        self._loop.call_soon(self._loop.call_soon, self._reclaim)

    def _reclaim(self) -> None:
        library, transport = self._library, self.transport
        if library is None or transport is None or transport.is_closing():
            return
        self._library = None
        library.detach()
        if not self._is_reading_paused:
            transport.resume_reading()
        self._answered(True)

    # --- time ---

    def _is_idle_now(self) -> None:
        """Start the timer that closes the connection unless a request arrives in time."""
        self._close_at_s = self._loop.time() + self._http_listener.keep_alive_s
        if self._watch is not None and self._watch.when() > self._close_at_s:
            self._watch.cancel()
            self._watch = None
        if self._watch is None:
            self._watch = self._loop.call_at(self._close_at_s, self._check_idle)

    def _check_idle(self) -> None:
        self._watch = None
        if self._is_answering:
            return
        if self._loop.time() < self._close_at_s:
            self._watch = self._loop.call_at(self._close_at_s, self._check_idle)
        else:
            self.close_gracefully()

    def close_unless_delegated(self) -> None:
        """Close the connection unless aiohttp has it."""
        if self._library is None:
            self.close_gracefully()

    def close_gracefully(self) -> None:
        """Close the connection after written bytes have been sent."""
        if self.transport is not None:
            self.transport.close()

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        if self.transport is not None:
            self.transport.resume_reading()

    def _forget_timers(self) -> None:
        for timer in (self._partial_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._partial_timer = self._watch = None
