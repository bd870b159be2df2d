"""User ASGI middleware around the whole server, as with vLLM's `--middleware`, behind uvicorn's connections."""

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, unquote

import h11
import orjson
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from blis_sim.options import OptionError
from mockserve.protocol.errors import ApiError

HIGH_WATER_BYTES = 64 * 1024
"""Unread bytes above which the transport pauses writing, like a socket's transport."""


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

    # --- the transport interface that a connection uses ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._unread += data
        self._come.set()
        self._note_size()

    def close(self) -> None:
        """Close after all written bytes have been read."""
        self._is_closing = True
        self._come.set()

    def abort(self) -> None:
        """Close at once."""
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
        """Do nothing: the connection has one request, which is already complete."""

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


_PATH_CHARACTERS = "/:@!$&'()*+,;=-._~%"
_HOP_BY_HOP_HEADERS = frozenset(
    {
        b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
"""Hop-by-hop headers of the client's connection, which do not apply to the connection in memory."""
_UVICORN_HEADERS = frozenset({b"date", b"server", b"connection", b"transfer-encoding"})
"""Headers that uvicorn adds to every reply."""


class Bridge:
    """The innermost ASGI application, inside of all middleware."""

    def __init__(self, new_connection: Callable[[], asyncio.Protocol], most_body_bytes: int, receive_s: float) -> None:
        self._new_connection = new_connection
        self._most_body_bytes = most_body_bytes
        self._receive_s = receive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._receive_s):
                body = await self._whole_body(receive)
        except TimeoutError:
            late = ApiError("Request Timeout", status=408, kind="Request Timeout")
            await _say(send, 408, orjson.dumps(late.body()), b"application/json")
            return
        if body is None:
            return
        client = h11.Connection(h11.CLIENT)
        try:
            data = _request_bytes(client, scope, body)
        except h11.LocalProtocolError:
            await _say(send, 400, b"Invalid HTTP request received.")
            return
        transport = MemoryTransport({"peername": scope.get("client"), "sockname": scope.get("server")})
        connection = self._new_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        watching = asyncio.create_task(_abort_on_disconnect(receive, transport))
        try:
            connection.data_received(data)
            await _forward_reply(client, transport, send)
        finally:
            watching.cancel()
            transport.abort()

    async def _whole_body(self, receive: Receive) -> bytes | None:
        """Return the body, cut one byte above the server's limit; None if the client has disconnected."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > self._most_body_bytes:
                return bytes(body)


async def _run_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _request_bytes(client: h11.Connection, scope: Scope, body: bytes) -> bytes:
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP_HEADERS]
    if not any(name.lower() == b"host" for name, _ in headers):
        headers.append((b"host", b"localhost"))
    if body or scope["method"] not in ("GET", "HEAD", "OPTIONS"):
        headers.append((b"content-length", b"%d" % len(body)))
    request = h11.Request(method=scope["method"], target=_target(scope), headers=headers)
    sent = [client.send(request), client.send(h11.Data(data=body)) if body else b"", client.send(h11.EndOfMessage())]
    return b"".join(each or b"" for each in sent)


def _target(scope: Scope) -> bytes:
    """Return the path in the client's spelling, unless a middleware has changed it."""
    raw: bytes = scope.get("raw_path") or b""
    path: str = scope["path"]
    target = raw if unquote(raw.decode("latin-1")) == path else quote(path, safe=_PATH_CHARACTERS).encode()
    query: bytes = scope.get("query_string", b"")
    return target + b"?" + query if query else target


async def _forward_reply(client: h11.Connection, transport: MemoryTransport, send: Send) -> None:
    """Forward the reply as it is written. A truncated reply stays incomplete, so that uvicorn truncates it too."""
    while data := await transport.read():
        client.receive_data(data)
        while (event := client.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                await send(_start(event))
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return


def _start(response: h11.Response) -> Message:
    headers = [(name, value) for name, value in response.headers if name not in _UVICORN_HEADERS]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


async def _abort_on_disconnect(receive: Receive, transport: MemoryTransport) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    transport.abort()


async def _say(send: Send, status: int, text: bytes, kind: bytes = b"text/plain; charset=utf-8") -> None:
    headers = [(b"content-length", b"%d" % len(text)), (b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def apply_middleware(app: ASGIApp, paths: Sequence[str]) -> ASGIApp:
    """Wrap `app` in the middleware at the import paths; the last path is outermost.

    A class is called with the application; a coroutine function is called with Starlette's `request` and `call_next`.
    An exception that no middleware catches becomes status 500. Raises OptionError.
    """
    for path in paths:
        found = import_object(path)
        if inspect.isclass(found):
            app = _made(path, found, app)
        elif inspect.iscoroutinefunction(found):
            app = BaseHTTPMiddleware(app, dispatch=found)
        else:
            raise OptionError(f"--middleware {path} must be a class or a coroutine function, got {found!r}")
    return ServerErrorMiddleware(app)


def import_object(path: str) -> Any:
    """The object at `package.module.name` or `package.module:name`. Raises OptionError."""
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module or not name:
        raise OptionError(f"--middleware must be an import path such as package.module.Class, got {path!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # appended last: a console script does not have the working directory on its path
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # code of a user may raise anything
        raise OptionError(f"--middleware {path} cannot be imported: {type(error).__name__}: {error}") from error


def _made(path: str, found: Any, app: ASGIApp) -> ASGIApp:
    try:
        made: ASGIApp = found(app)
    except Exception as error:
        raise OptionError(f"--middleware {path} cannot be made: {type(error).__name__}: {error}") from error
    return made


_DATE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a request and of a connection."""

    most_body_bytes: int
    most_head_bytes: int
    receive_s: float
    keep_alive_s: int


class MiddlewareConnections:
    """Connections of clients: uvicorn reads requests and writes replies, as in vLLM."""

    def __init__(
        self, new_connection: Callable[[], asyncio.Protocol], paths: Sequence[str], limits: ConnectionLimits
    ) -> None:
        """`new_connection` makes a connection of the inner server. Raises OptionError for an invalid middleware."""
        bridge = Bridge(new_connection, limits.most_body_bytes, limits.receive_s)
        self._config = Config(
            apply_middleware(bridge, paths),
            interface="asgi3",
            lifespan="on",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=limits.keep_alive_s,
            h11_max_incomplete_event_size=limits.most_head_bytes,
        )
        self._config.load()
        self._lifespan = LifespanOn(self._config)
        self._state = ServerState()
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Start the lifespan of the middleware. Raises OptionError if it fails."""
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise OptionError("--middleware: the application has refused to start")
        self._write_date()

    def new(self) -> asyncio.Protocol:
        """A connection with a client."""
        make: Callable[..., asyncio.Protocol] = self._config.http_protocol_class
        return make(config=self._config, server_state=self._state, app_state=self._lifespan.state)

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for open replies, then cut them."""
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)
        for connection in tuple(self._state.connections):
            connection.transport.close()
        for task in tuple(self._state.tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await self._lifespan.shutdown()

    def _write_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode()), (b"server", b"uvicorn")]
        self._timer = asyncio.get_running_loop().call_later(_DATE_EVERY_S, self._write_date)
