"""A plain aiohttp server: even streams, /health, and hostile replies to a POST with the header X-Hostile: NUMBER.

    python -m workshop.attack.hostile_upstream

Proxies are attacked from behind with it, and its streams are the control of other measurements.
"""

import asyncio
import gzip
import os
import socket
import sys
import zlib
from contextlib import suppress

from aiohttp import web

STEP_S = 0.01
MOST_PARSED_BYTES = 4096
NUMBER_HEADER = "X-Hostile"
EVENT = b'data: {"id":"c","choices":[{"index":0,"text":"a"}]}\n\n'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(300_000_000))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def coded(name: bytes, data: bytes) -> bytes:
    return PLAIN + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (name, len(data)) + data


REPLIES = (
    coded(b"gzip", BOMB),
    coded(b"deflate", zlib.compress(bytes(300_000_000))),
    coded(b"gzip", BOMB[:-9] + b"\xff" * 9),
    coded(b"br", b"\xff" * 100_000),
    PLAIN + b"Content-Length: 1000000000\r\n\r\n{",
    PLAIN + b"Content-Length: 30000000\r\n\r\n" + b"[" * 30_000_000,
    PLAIN + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    PLAIN + b"X: a\r\n" * 100_000 + b"\r\n",
    b"HTTP/1.1 999 \xff\xfe\r\n\r\n",
    b"\x00" * 100_000,
    STREAM + chunk(b"data: " + b"x" * 20_000_000) + b"0\r\n\r\n",
    STREAM + chunk(EVENT * 200_000) + b"0\r\n\r\n",
    STREAM + chunk(b"data: {\n\n" * 100_000),
    STREAM + b"zz\r\n",
    STREAM + chunk(EVENT.replace(b'"a"', b'"\\ud83d"')) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    STREAM + chunk(b'data: {"usage": {"completion_tokens": 1e999}}\n\ndata: ' + b"[" * 100_000 + b"\n\n"),
)


async def stream(request: web.Request) -> web.StreamResponse:
    """A token at every step, or what is hostile."""
    if NUMBER_HEADER in request.headers:
        return await hostile(request)
    # A large body is not parsed, which would stop the streams of all others here.
    asked = await request.json() if (request.content_length or 0) < MOST_PARSED_BYTES else {}
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    for number in range(int(asked.get("max_tokens") or 16)):
        await asyncio.sleep(begin_s + number * STEP_S - loop.time())
        await response.write(EVENT)
    await response.write(b"data: [DONE]\n\n")
    return response


def send(descriptor: int, data: bytes) -> None:
    """Send from a thread, so that the streams of this server do not wait for it."""
    with socket.socket(fileno=descriptor) as connection, suppress(OSError):
        connection.settimeout(10)
        connection.sendall(data)


async def hostile(request: web.Request) -> web.StreamResponse:
    """Bytes that need not be HTTP, and the end of the connection."""
    await request.read()
    transport = request.transport
    assert transport is not None
    descriptor = os.dup(transport.get_extra_info("socket").fileno())
    await asyncio.to_thread(send, descriptor, REPLIES[int(request.headers[NUMBER_HEADER])])
    transport.close()
    raise asyncio.CancelledError


async def health(_request: web.Request) -> web.Response:
    return web.Response()


async def serve() -> None:
    """Listen at a free port until stopped."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/completions", stream)
    app.router.add_post("/v1/chat/completions", stream)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, auto_decompress=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stderr.write(f"serving hostile replies on http://127.0.0.1:{runner.addresses[0][1]}\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
