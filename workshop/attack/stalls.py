"""The effect of one hostile request on all others: gaps of other streams, /health, and memory.

    python -m workshop.attack.stalls [--only NAME,NAME] [--seconds S]

Each case starts a server, measures four streams and `/health` for a while without the request and then with it, and
prints by how much the gaps between tokens grew, how long `/health` took and what memory the server gained.
"""

import argparse
import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workshop.attack.large_bodies import CASES, Attack
from workshop.server_load.peers import MODEL, Pace, Peer, running

STEP_MS = 10
NUM_STREAMS = 4
HEALTH_EVERY_S = 0.02
RECEIVE_BYTES = 1 << 18

GAP_P99_LIMIT_MS = 50.0
GAP_MAX_LIMIT_MS = 100.0
HEALTH_LIMIT_MS = 100.0
MEMORY_LIMIT_MIB = 200.0


@dataclass(slots=True)
class ProbeSamples:
    """Samples of the probes in one stretch of time."""

    gaps_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stall:
    """Result of one case."""

    gap_p99_growth_ms: float
    gap_max_growth_ms: float
    health_max_ms: float
    memory_mib: float
    status: str
    took_s: float

    @property
    def holds(self) -> bool:
        """Whether every bound is kept."""
        return (
            self.gap_p99_growth_ms <= GAP_P99_LIMIT_MS
            and self.gap_max_growth_ms <= GAP_MAX_LIMIT_MS
            and self.health_max_ms <= HEALTH_LIMIT_MS
            and self.memory_mib <= MEMORY_LIMIT_MIB
        )


class Probe:
    """Streams and health checks that run on a loop of their own until they are stopped."""

    def __init__(self, port: int, path: str = "/v1/completions") -> None:
        self._port = port
        self._path = path
        self.seen = ProbeSamples()
        self._last_s: dict[int, float] = {}
        self._asked_s: float | None = None

    def open_gaps_ms(self) -> list[float]:
        """Return the time since the last event of each stream."""
        return [1e3 * (time.monotonic() - each) for each in self._last_s.values()]

    def open_health_ms(self) -> list[float]:
        """Return the time that the present check has taken so far."""
        return [] if self._asked_s is None else [1e3 * (time.monotonic() - self._asked_s)]

    async def stream(self) -> None:
        """Streams of long answers, one after the other; notes the gaps between events."""
        body = {"prompt": "hi", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        own = len(self._last_s)
        self._last_s[own] = time.monotonic()
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(request_bytes(self._path, json.dumps(body).encode()))
                last_s = 0.0
                while data := await reader.read(65536):
                    now_s = time.monotonic()
                    if last_s:
                        self.seen.gaps_ms.append(1e3 * (now_s - last_s))
                    last_s = self._last_s[own] = now_s
                    if b"[DONE]" in data:
                        break
            finally:
                writer.close()

    async def health(self) -> None:
        """GET /health again and again."""
        while True:
            began_s = self._asked_s = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                await reader.read(100)
            finally:
                writer.close()
            self.seen.health_ms.append(1e3 * (time.monotonic() - began_s))
            self._asked_s = None
            await asyncio.sleep(HEALTH_EVERY_S)


def request_bytes(path: str, body: bytes, further: str = "") -> bytes:
    """A POST request as it goes over the wire."""
    return request_head(path, len(body), further) + body


def request_head(path: str, num_body_bytes: int, further: str = "") -> bytes:
    """The head of a POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{further}"
    return f"{head}Content-Length: {num_body_bytes}\r\n\r\n".encode()


def resident_mib(pid: int) -> float:
    """Memory of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in (pid, *children))
    return pages * 4096 / 2**20


def send(port: int, attack: Attack, seconds: float, found: dict[str, str]) -> None:
    """Send the request, read its reply, and hang up when `seconds` are over."""
    until_s = time.monotonic() + seconds
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(request_head(attack.path, len(attack.body)))
        connection.sendall(attack.body)  # by itself, since to copy 250 MB would stop the probes of this process
        num_bytes, first = 0, b""
        while time.monotonic() < until_s:
            connection.settimeout(max(0.01, until_s - time.monotonic()))
            data = connection.recv(RECEIVE_BYTES)
            if not data:
                break
            first = first or data[:64]
            num_bytes += len(data)
            found["status"] = f"{first[9:12].decode()} {num_bytes / 1e6:.1f} MB"
            if num_bytes < 400 and data.endswith(b"}"):
                break


async def measure(port: int, pid: int, attack: Attack, seconds: float, before_s: float = 3.0) -> Stall:
    """`attack` on a server that listens, and the `before_s` seconds before it."""
    probe = Probe(port)
    tasks = [asyncio.create_task(probe.stream()) for _ in range(NUM_STREAMS)] if attack.streams else []
    tasks.append(asyncio.create_task(probe.health()))
    await asyncio.sleep(before_s / 3)
    before = probe.seen = ProbeSamples()
    await asyncio.sleep(before_s)
    memory_mib = peak_mib = resident_mib(pid)
    during = probe.seen = ProbeSamples()
    status: dict[str, str] = {}
    began_s = time.monotonic()
    thread = threading.Thread(target=send, args=(port, attack, seconds, status), daemon=True)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.02)
        peak_mib = max(peak_mib, resident_mib(pid))
    took_s = time.monotonic() - began_s
    for _ in range(75):
        await asyncio.sleep(0.02)
        peak_mib = max(peak_mib, resident_mib(pid))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gap_p99, gap_max = _growth(before.gaps_ms, [*during.gaps_ms, *probe.open_gaps_ms()])
    stalled = max((*during.health_ms, *probe.open_health_ms()))
    return Stall(gap_p99, gap_max, stalled, peak_mib - memory_mib, status.get("status", "no reply"), took_s)


def _growth(before: Sequence[float], during: Sequence[float]) -> tuple[float, float]:
    """Return the growth of the 99th percentile and of the largest of the gaps."""
    if not before or not during:
        return 0.0, 0.0
    return (
        float(np.percentile(during, 99) - np.percentile(before, 99)),
        float(max(during) - np.percentile(before, 99)),
    )


class SteppingServer(Peer):
    """A server whose pace, steps of 10 ms, is in its command."""

    def arguments(self, port: int, pace: Pace) -> list[str]:
        return [*self.command, "--port", str(port)]


def server_for(flags: Sequence[str]) -> Peer:
    """A server with steps of 10 ms."""
    steps = ("--latency-model", "blackbox", "--alpha-coeffs", "0,0,0", "--beta-coeffs", f"{STEP_MS * 1000},0,0")
    command = (str(Path(sys.executable).with_name("blis")), "serve", MODEL, "--host", "127.0.0.1", *steps, *flags)
    return SteppingServer("blis", command)


def main() -> None:
    """Run every case, or the cases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each request may take")
    arguments = parser.parse_args()
    names = [each for each in arguments.only.split(",") if each] or list(CASES)
    print(f"{'case':28} {'gap p99 +ms':>11} {'gap max +ms':>11} {'health ms':>9} {'MiB':>7} {'s':>6}  reply")
    failed = 0
    for name in names:
        attack = CASES[name]()
        with running(server_for(attack.flags), Pace(), None) as server:
            stall = asyncio.run(measure(server.port, server.pid, attack, arguments.seconds))
        failed += not stall.holds
        print(
            f"{name:28} {stall.gap_p99_growth_ms:11.1f} {stall.gap_max_growth_ms:11.1f} {stall.health_max_ms:9.1f} "
            f"{stall.memory_mib:7.0f} {stall.took_s:6.1f}  {stall.status}{'' if stall.holds else '  BOUND BROKEN'}",
            flush=True,
        )
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
