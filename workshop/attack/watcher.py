"""Watches a server from a process of its own: gaps of streams, and how long /health takes.

    python -m workshop.attack.watcher HOST PORT FILE [--no-streams] [--api-key KEY] [--pid PID] [--seconds S]

FILE gets a line for each sample: its kind, the monotonic clock's instant and milliseconds. SIGTERM stops the watcher.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from workshop.attack.memory import threads_of, tree

if TYPE_CHECKING:
    from workshop.attack.setups import Running

HEALTH_EVERY_S = 0.02
NUM_STREAMS = 2
STREAM_TOKENS = 1500
LONGEST_WAIT_S = 60.0
GAP, HEALTH, OWN, RAN, WAITED, DISK, BROKEN = "gap", "health", "own", "ran", "waited", "disk", "broken"
"""Kinds of samples.

OWN is how late this process itself was woken, BROKEN a stream that ended without its end. RAN is how long the server's
main thread has had a processor since its start, and DISK how long it was seen to wait for a disk. WAITED adds up how
long that thread of the server waited for a processor in each tick that waited longest: one that waits may hold the
interpreter's lock, for which the main thread waits without needing a processor.
"""
TICK_S = 0.01
THREADS_EVERY_S = 0.5
"""Seconds between searches for new threads."""
UNINTERRUPTIBLE = "D"
"""The state of a thread that waits for a disk, also where it reads a page of its program."""


class Watcher:
    """Writes samples while it runs."""

    def __init__(self, host: str, port: int, file: TextIO, api_key: str | None, pid: int | None) -> None:
        self._address = host, port
        self._file = file
        self._pid = pid
        self._thread = None if pid is None else Path(f"/proc/{pid}/task/{pid}")
        self._disk_ms = self._waited_ms = 0.0
        self._waited_ns: dict[Path, int] = {}
        self._threads_at_s = 0.0
        self._key_line = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._open_since_s: dict[str, tuple[str, float]] = {}
        """What is waited for, with its kind and the instant since which it is due."""

    def note_open(self) -> None:
        """Record how long what is still waited for has been due, as if it came now."""
        for kind, since_s in self._open_since_s.values():
            self._note(kind, (time.monotonic() - since_s) * 1000)

    def _note(self, kind: str, ms: float) -> None:
        self._file.write(f"{kind} {time.monotonic():.6f} {ms:.3f}\n")

    async def watch_itself(self) -> None:
        """Record how late timers of this process are, because it competes for a processor, too."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(TICK_S)
            took_s = time.monotonic() - before_s
            self._note(OWN, (took_s - TICK_S) * 1000)
            if self._thread is not None:
                with suppress(OSError):
                    self._note_thread(self._thread, took_s * 1000)

    def _note_thread(self, thread: Path, tick_ms: float) -> None:
        ran_ns = _schedstat(thread)[0]
        if (thread / "stat").read_text().rpartition(")")[2].split()[0] == UNINTERRUPTIBLE:
            self._disk_ms += tick_ms
        self._note(RAN, ran_ns / 1e6)
        self._waited_ms += self._longest_wait_ns() / 1e6
        self._note(WAITED, self._waited_ms)
        self._note(DISK, self._disk_ms)

    def _longest_wait_ns(self) -> int:
        """How long that thread of the server has waited for a processor since the last call that waited longest."""
        if time.monotonic() > self._threads_at_s and self._pid is not None:
            self._threads_at_s = time.monotonic() + THREADS_EVERY_S
            threads = [each for pid in tree(self._pid) if pid == self._pid or _answers(pid) for each in threads_of(pid)]
            self._waited_ns = {each: self._waited_ns.get(each, -1) for each in threads}
        longest_ns = 0
        for thread, before_ns in self._waited_ns.items():
            with suppress(OSError):
                self._waited_ns[thread] = waited_ns = _schedstat(thread)[1]
                longest_ns = max(longest_ns, waited_ns - before_ns if before_ns >= 0 else 0)
        return longest_ns

    async def watch_health(self) -> None:
        """GET /health again and again, each time on a connection of its own."""
        request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        while True:
            before_s = time.monotonic()
            self._open_since_s[HEALTH] = HEALTH, before_s
            with suppress(OSError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    reader, writer = await asyncio.open_connection(*self._address)
                    writer.write(request)
                    await reader.readline()
                    writer.transport.abort()
            self._note(HEALTH, (time.monotonic() - before_s) * 1000)
            del self._open_since_s[HEALTH]
            await asyncio.sleep(HEALTH_EVERY_S)

    async def watch_streams(self, number: int) -> None:
        """One stream after the other."""
        asked = {
            "model": "m",
            "prompt": f"stream {number}",
            "max_tokens": STREAM_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        body = json.dumps(asked).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = f"{head}{self._key_line}Content-Length: {len(body)}\r\n\r\n".encode() + body
        while True:
            try:
                reader, writer = await asyncio.open_connection(*self._address)
                writer.write(request)
                is_whole = await self._read(reader, f"stream {number}")
                writer.transport.abort()
            except OSError:
                is_whole = False
            self._open_since_s.pop(f"stream {number}", None)
            if not is_whole:
                self._note(BROKEN, 0.0)
                await asyncio.sleep(0.1)

    async def _read(self, reader: asyncio.StreamReader, name: str) -> bool:
        last_s = 0.0
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                return True
            if line.startswith(b'data: {"id"'):
                now_s = time.monotonic()
                if last_s:
                    self._note(GAP, (now_s - last_s) * 1000)
                last_s = now_s
                self._open_since_s[name] = GAP, now_s
        return False


def _answers(pid: int) -> bool:
    """Whether a process that a server has started answers requests; others make what is costly."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _schedstat(thread: Path) -> tuple[int, int]:
    """Return the time that a thread has run and the time that it has waited for a processor, in nanoseconds."""
    ran_ns, waited_ns, _ = map(int, (thread / "schedstat").read_text().split())
    return ran_ns, waited_ns


async def _watch(watcher: Watcher, with_streams: bool, seconds: float | None) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    jobs = [watcher.watch_itself(), watcher.watch_health()]
    if with_streams:
        jobs += [watcher.watch_streams(number) for number in range(NUM_STREAMS)]
    tasks = [asyncio.create_task(job) for job in jobs]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()
    watcher.note_open()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def watching(server: "Running", file: Path, with_streams: bool, api_key: str | None) -> Iterator[None]:
    """The watcher of a server, in a process of its own."""
    command = [sys.executable, "-m", "workshop.attack.watcher", server.host, str(server.port), str(file)]
    command += [] if with_streams else ["--no-streams"]
    command += [] if api_key is None else ["--api-key", api_key]
    command += [] if server.pid is None else ["--pid", str(server.pid)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    """Watch until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    parser.add_argument("--no-streams", action="store_true")
    parser.add_argument("--api-key")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this time")
    given = parser.parse_args()
    with open(given.file, "w", encoding="utf-8") as file:
        watcher = Watcher(given.host, given.port, file, given.api_key, given.pid)
        asyncio.run(_watch(watcher, not given.no_streams, given.seconds))


if __name__ == "__main__":
    main()
