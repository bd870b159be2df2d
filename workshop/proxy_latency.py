"""How much later a reply comes through `blis observe --proxy` than without it, at a rate of requests.

A server of its own process answers streams at once: one event, then others. One request in six goes to it directly and
the others through the proxy, at random, on connections that are open, so that both kinds see the same machine.

    python -m workshop.proxy_latency --rate 500 --seconds 20
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import cast

import uvloop

NUM_EVENTS = 10
EVENT_PAUSE_S = 0.01
DIRECT_SHARE = 1 / 6
PROMPT = "word " * 400


class StreamServer(asyncio.Protocol):
    """The server: a stream of events for each request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        head, is_there, body = self.rest.partition(b"\r\n\r\n")
        if not is_there:
            return
        _, has_body, length = head.lower().partition(b"content-length:")
        if has_body and len(body) < int(length.split(b"\r\n")[0]):
            return
        self.rest = b""
        if head.startswith(b"GET "):  # what the proxy asks about its server
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + event(0)
        )
        asyncio.get_running_loop().call_later(EVENT_PAUSE_S, self.go_on, 1)

    def go_on(self, number: int) -> None:
        if number == NUM_EVENTS:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        self.transport.write(event(number))
        asyncio.get_running_loop().call_later(EVENT_PAUSE_S, self.go_on, number + 1)


def event(number: int) -> bytes:
    """One chunk of the stream."""
    choice = {"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}
    data = (
        b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(StreamServer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


class ClientConnection(asyncio.Protocol):
    """A connection of the client, which notes when the first byte of a reply comes."""

    def __init__(self, idle: deque["ClientConnection"], times: list[float]) -> None:
        self.idle = idle
        self.times = times
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> None:
        self.sent = perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.sent:
            self.times.append(perf_counter() - self.sent)
            self.sent = 0.0
        if data.endswith(b"0\r\n\r\n"):
            self.idle.append(self)


async def measure(ports: list[int], rate: float, seconds: float) -> list[list[float]]:
    loop = asyncio.get_running_loop()
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    times: list[list[float]] = [[] for _ in ports]
    idle: list[deque[ClientConnection]] = [deque() for _ in ports]
    for place, port in enumerate(ports):
        for _ in range(int(rate / 4)):
            _, asking = await loop.create_connection(
                lambda place=place: ClientConnection(idle[place], times[place]),  # type: ignore[misc]
                "127.0.0.1",
                port,
            )
            idle[place].append(asking)
    await asyncio.sleep(1)
    chance = random.Random(1)
    start, number = perf_counter(), 0
    while perf_counter() - start < seconds:
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - perf_counter()))
        place = int(chance.random() >= DIRECT_SHARE)
        if idle[place]:
            idle[place].popleft().ask(request)
        number += 1
    await asyncio.sleep(1)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second through the proxy")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--content", action="store_true", help="record contents, too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(serve())
        return
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        command = [sys.executable, "-m", "blis_sim.cli", "observe", "--proxy", "0", "--url", f"http://127.0.0.1:{port}"]
        command += ["--rtt-ms", "0", "--model", "m", "-o", str(Path(folder) / "r"), "--record-itl"]
        command += ["--record-content"] if given.content else []
        proxy = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert proxy.stderr is not None
        try:
            proxied = int(proxy.stderr.readline().split(" to ")[0].rsplit(":", 1)[1])
            times = uvloop.run(measure([port, proxied], given.rate / (1 - DIRECT_SHARE), given.seconds))
            proxy.terminate()
            summary, _ = proxy.communicate(timeout=60)
        finally:
            proxy.kill()
            server.kill()
    print(json.loads(summary))
    for name, each in zip(("direct", "through the proxy"), times, strict=True):
        cuts = statistics.quantiles(each, n=100)
        print(f"{name:<20} {len(each):>7} requests, ms: p50 {cuts[49] * 1e3:.3f}, p90 {cuts[89] * 1e3:.3f}", end="")
        print(f", p99 {cuts[98] * 1e3:.3f}")
    added = [statistics.quantiles(times[1], n=100)[at] - statistics.quantiles(times[0], n=100)[at] for at in (49, 98)]
    print(f"added: p50 {added[0] * 1e3:.3f} ms, p99 {added[1] * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
