"""The server as an ASGI application: each request goes to a connection of the server in memory."""

import asyncio
from collections.abc import Callable
from urllib.parse import quote, unquote

import h11
import orjson
from starlette.types import Message, Receive, Scope, Send

from mockserve.asgi.transport import MemoryTransport
from mockserve.protocol.errors import ApiError

_PATH_CHARACTERS = "/:@!$&'()*+,;=-._~%"
_BETWEEN_NEIGHBOURS = frozenset(
    {
        b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
"""Headers of the client's connection, which is not the one in memory."""
_WRITTEN_OUTSIDE = frozenset({b"date", b"server", b"connection", b"transfer-encoding"})
"""Headers that uvicorn adds to every reply."""


class Bridge:
    """The ASGI application that is innermost: what it gets came through all middleware."""

    def __init__(self, new_connection: Callable[[], asyncio.Protocol], most_body_bytes: int, receive_s: float) -> None:
        self._new_connection = new_connection
        self._most_body_bytes = most_body_bytes
        self._receive_s = receive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
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
        watching = asyncio.create_task(_hang_up_with_client(receive, transport))
        try:
            connection.data_received(data)
            await _pass_on(client, transport, send)
        finally:
            watching.cancel()
            transport.abort()

    async def _whole_body(self, receive: Receive) -> bytes | None:
        """The body, one byte more than the server takes at most; None if the client has gone."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > self._most_body_bytes:
                return bytes(body)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _request_bytes(client: h11.Connection, scope: Scope, body: bytes) -> bytes:
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _BETWEEN_NEIGHBOURS]
    if not any(name.lower() == b"host" for name, _ in headers):
        headers.append((b"host", b"localhost"))
    if body or scope["method"] not in ("GET", "HEAD", "OPTIONS"):
        headers.append((b"content-length", b"%d" % len(body)))
    request = h11.Request(method=scope["method"], target=_target(scope), headers=headers)
    sent = [client.send(request), client.send(h11.Data(data=body)) if body else b"", client.send(h11.EndOfMessage())]
    return b"".join(each or b"" for each in sent)


def _target(scope: Scope) -> bytes:
    """The path as the client wrote it, unless a middleware has changed it."""
    raw: bytes = scope.get("raw_path") or b""
    path: str = scope["path"]
    target = raw if unquote(raw.decode("latin-1")) == path else quote(path, safe=_PATH_CHARACTERS).encode()
    query: bytes = scope.get("query_string", b"")
    return target + b"?" + query if query else target


async def _pass_on(client: h11.Connection, transport: MemoryTransport, send: Send) -> None:
    """Send the reply as it comes. One that is cut is left incomplete, which uvicorn cuts as well."""
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
    headers = [(name, value) for name, value in response.headers if name not in _WRITTEN_OUTSIDE]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


async def _hang_up_with_client(receive: Receive, transport: MemoryTransport) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    transport.abort()


async def _say(send: Send, status: int, text: bytes, kind: bytes = b"text/plain; charset=utf-8") -> None:
    headers = [(b"content-length", b"%d" % len(text)), (b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
