"""Whether `blis serve` holds a crowd: many open streams, clients that are killed, and a million requests.

    python -m workshop.server_scale streams [--streams 10000] [--seconds 60]
    python -m workshop.server_scale killed [--streams 1000]
    python -m workshop.server_scale short [--requests 1000000]

Further arguments go to the server, such as --latency-calculator constant --inter-token-latency-ms 1000, with which the
tokens of `streams` are spread over each second; without, all are due at one instant, which is harder. Server and client
are processes of their own, on cores of their own where there are two.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import uvloop

from blis_sim.testing import serving
from workshop.processes import cpu_s, resident_mib

DONE = b"data: [DONE]"
STEP_OF_A_SECOND = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "1000000,0,0")
KILLED_STEP_MS = 500
PARTS = 10
"""Number of memory samples of `short`."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server process under load."""

    pid: int
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def metrics(self) -> dict[str, float]:
        """The samples of how much is left in the engine, and how late frames were."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as reply:
            page = reply.read().decode()
        found = re.findall(r"^(vllm:\w+|blis_\w+)(?:{[^}\n]*?(le=\"[^\"]*\")?})? (\S+)$", page, re.MULTILINE)
        return {name + bound: float(value) for name, bound, value in found}


@contextmanager
def running_server(*arguments: str) -> Iterator[Server]:
    """`blis serve` on the first core, until the block ends."""
    words = ["-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", "--host", "127.0.0.1", "--port", "0", *arguments]
    cores = os.sched_getaffinity(0)
    _pin(0, 0)  # which the server inherits
    with serving(words) as running:
        os.sched_setaffinity(0, cores)
        running.mark()
        yield Server(running.process.pid, running.url)
        print("".join(f"  server: {line}\n" for line in running.log.splitlines()), end="")


def _pin(pid: int, core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(pid, {cores[core]})


def completion(prompt: str, num_tokens: int, stream: bool) -> bytes:
    """The bytes of a request."""
    fields = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": stream}
    body = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# --- many streams ---


@dataclass(slots=True)
class Tally:
    """Results of all streams of a client."""

    num_open: int = 0
    num_events: int = 0
    num_complete: int = 0
    errors: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Stream(asyncio.Protocol):
    """Counts the events of one reply."""

    def __init__(self, tally: Tally, request: bytes) -> None:
        self._tally = tally
        self._request = request
        self._has_begun = False
        self._is_complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        tally = self._tally
        if not self._has_begun:
            self._has_begun = True
            if not data.startswith(b"HTTP/1.1 200 "):
                tally.errors.append(data[:200].decode(errors="replace"))
        tally.num_events += data.count(b"data: ")
        if DONE in data:
            self._is_complete = True
            tally.num_complete += 1
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.num_open -= 1
        if not self._is_complete:
            self._tally.errors.append(f"connection lost: {exc}")
        if not self._tally.num_open:
            self._tally.changed.set()


async def open_streams(address: tuple[str, int], num_streams: int, num_tokens: int) -> Tally:
    """Ask for that many streams, and return when all connections are made."""
    loop, tally = asyncio.get_running_loop(), Tally()
    for start in range(0, num_streams, 500):
        numbers = range(start, min(start + 500, num_streams))
        tally.num_open += len(numbers)
        await asyncio.gather(
            *(
                loop.create_connection(
                    partial(Stream, tally, completion(f"question {number}", num_tokens, stream=True)), *address
                )
                for number in numbers
            )
        )
    return tally


async def _all_of_streams(address: tuple[str, int], num_streams: int, num_tokens: int) -> Tally:
    tally = await open_streams(address, num_streams, num_tokens)
    await tally.changed.wait()
    return tally


def streams(num_streams: int, seconds: int, further: list[str]) -> bool:
    """Streams of a token a second; whether all came whole."""
    room = ("--max-num-seqs", str(num_streams), "--max-num-batched-tokens", str(max(8192, num_streams * 16)))
    blocks = ("--num-gpu-blocks-override", str(max(4096, num_streams * (2 + seconds // 16) * 2)))
    with running_server(*room, *blocks, *STEP_OF_A_SECOND, *further) as server:
        _pin(0, 1)
        idle_mib, began_s, began_cpu_s = resident_mib(server.pid), time.monotonic(), cpu_s(server.pid)
        tally = uvloop.run(_all_of_streams(server.address, num_streams, seconds))
        took_s, used_s = time.monotonic() - began_s, cpu_s(server.pid) - began_cpu_s
        metrics, peak_mib = server.metrics(), resident_mib(server.pid, b"VmHWM:")
    lags = {name: value for name, value in metrics.items() if name.startswith("blis_send_lag_seconds_bucket")}
    expected = num_streams * (seconds + 1)
    print(f"{num_streams:,} streams of {seconds} tokens in {took_s:.1f} s")
    print(f"  complete: {tally.num_complete:,}; events: {tally.num_events:,} of {expected:,}")
    print(f"  errors: {len(tally.errors)} {tally.errors[:1]}")
    print(f"  server: {used_s:.1f} s of CPU; memory {idle_mib:.0f} MiB idle, {peak_mib:.0f} MiB at most")
    print("  lag: " + ", ".join(f"{name[28:]}: {value:,.0f}" for name, value in lags.items()))
    return tally.num_complete == num_streams and not tally.errors and _is_empty(metrics)


def _is_empty(metrics: dict[str, float]) -> bool:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    left = {name: metrics[name] for name in names}
    print(f"  left in the engine: {left}")
    return not any(left.values())


# --- clients that are killed ---


def _hold_streams(address: tuple[str, int], num_streams: int) -> None:
    async def hold() -> None:
        await open_streams(address, num_streams, 4000)
        await asyncio.sleep(3600)

    uvloop.run(hold())


def killed(num_streams: int, further: list[str]) -> bool:
    """Kill a process with many streams; how soon the engine is empty, against the time of a step."""
    step = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", f"{KILLED_STEP_MS}000,0,0")
    blocks = ("--num-gpu-blocks-override", str(max(4096, num_streams * 300)))
    with running_server("--max-num-seqs", str(num_streams), *blocks, *step, *further) as server:
        client = multiprocessing.get_context("spawn").Process(target=_hold_streams, args=(server.address, num_streams))
        client.start()
        while server.metrics()["vllm:num_requests_running"] < num_streams:
            time.sleep(0.1)
        time.sleep(1)
        assert client.pid is not None
        began_s = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        while (metrics := server.metrics())["vllm:num_requests_running"] or metrics["vllm:kv_cache_usage_perc"]:
            if time.monotonic() - began_s > 30:
                break
        took_s = time.monotonic() - began_s
        client.join()
    print(f"{num_streams:,} clients killed in the middle of streams: empty within {took_s * 1000:.0f} ms,")
    print(f"  of which a step may take {KILLED_STEP_MS} ms")
    return _is_empty(metrics)


# --- many short requests ---


class Pipeline(asyncio.Protocol):
    """Sends requests over one connection, `depth` at a time, and counts the replies."""

    def __init__(self, numbers: Iterator[int], depth: int, ended: asyncio.Queue[str]) -> None:
        self._numbers = numbers
        self._depth = depth
        self._ended = ended
        self._num_awaited = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._num_awaited -= data.count(b"HTTP/1.1 200 ")
        if b"HTTP/1.1 4" in data or b"HTTP/1.1 5" in data:
            self._ended.put_nowait(data[:300].decode(errors="replace"))
        elif not self._num_awaited:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.put_nowait(f"connection lost: {exc}" if self._num_awaited else "")

    def _send(self) -> None:
        numbers = [number for number, _ in zip(self._numbers, range(self._depth), strict=False)]
        self._num_awaited = len(numbers)
        if numbers:
            data = (completion(f"short question number {each}", 4, stream=False) for each in numbers)
            self._transport.write(b"".join(data))
        else:
            self._transport.close()


async def _ask(address: tuple[str, int], numbers: Iterator[int], num_connections: int, depth: int) -> list[str]:
    loop, ended = asyncio.get_running_loop(), asyncio.Queue[str]()
    for _ in range(num_connections):
        await loop.create_connection(lambda: Pipeline(numbers, depth, ended), *address)
    return [error for error in [await ended.get() for _ in range(num_connections)] if error]


def short(num_requests: int, further: list[str]) -> bool:
    """Requests of four tokens, each with another prompt; the server's memory after each tenth."""
    instant = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", "1000,0,0")
    memory: list[float] = []
    errors: list[str] = []
    with running_server(*instant, *further) as server:
        _pin(0, 1)
        began_s, began_cpu_s = time.monotonic(), cpu_s(server.pid)
        for part in range(PARTS):
            numbers = iter(range(num_requests * part // PARTS, num_requests * (part + 1) // PARTS))
            errors += uvloop.run(_ask(server.address, numbers, 64, 4))
            memory.append(resident_mib(server.pid))
        took_s, used_s = time.monotonic() - began_s, cpu_s(server.pid) - began_cpu_s
        metrics = server.metrics()
    print(f"{num_requests:,} requests in {took_s:.1f} s, {used_s / num_requests * 1e6:.0f} us of CPU each")
    print(f"  errors: {len(errors)} {errors[:1]}")
    print(f"  memory after each tenth, MiB: {', '.join(f'{each:.1f}' for each in memory)}")
    return not errors and _is_empty(metrics)


def main() -> int:
    """Run one of the cases; arguments that are not its own go to the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("streams", "killed", "short"))
    parser.add_argument("--streams", type=int, default=None)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=1_000_000)
    given, further = parser.parse_known_args()
    if given.case == "streams":
        is_good = streams(given.streams or 10_000, given.seconds, further)
    elif given.case == "killed":
        is_good = killed(given.streams or 1_000, further)
    else:
        is_good = short(given.requests, further)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
