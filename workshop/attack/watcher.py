"""Watches a server from a process of its own: gaps of streams, and how long /health takes.

    python -m workshop.attack.watcher HOST PORT FILE [--protocol http|grpc|none] [--api-key KEY] [--pid PID]

FILE gets a line for each sample: its kind, the monotonic clock's instant and milliseconds. SIGTERM stops the watcher.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from workshop.attack.setups import Running
from workshop.processes import threads_of, tree

HEALTH_EVERY_S = 0.02
NUM_STREAMS = 2
STREAM_TOKENS = 1500
LONGEST_WAIT_S = 60.0
GAP, HEALTH, OWN, WAITED, BROKEN = "gap", "health", "own", "waited", "broken"
"""Kinds of samples.

OWN is how late this process itself was woken, BROKEN a stream that ended without its end. WAITED adds up how long that
thread of the server waited for a processor in each tick that waited longest: one that waits may hold the interpreter's
lock, for which the main thread waits without needing a processor.
"""
TICK_S = 0.01
THREADS_EVERY_S = 0.5
"""Seconds between searches for new threads."""
HTTP, GRPC, NONE = "http", "grpc", "none"


class Watcher:
    """Writes samples while it runs."""

    def __init__(self, host: str, port: int, file: TextIO, api_key: str | None, pid: int | None) -> None:
        self._address = host, port
        self._file = file
        self._pid = pid
        self._waited_ms = 0.0
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
            self._note(OWN, (time.monotonic() - before_s - TICK_S) * 1000)
            self._waited_ms += self._longest_wait_ns() / 1e6
            self._note(WAITED, self._waited_ms)

    def _longest_wait_ns(self) -> int:
        """How long that thread of the server has waited for a processor since the last call that waited longest."""
        if time.monotonic() > self._threads_at_s and self._pid is not None:
            self._threads_at_s = time.monotonic() + THREADS_EVERY_S
            threads = [each for pid in tree(self._pid) if pid == self._pid or _answers(pid) for each in threads_of(pid)]
            self._waited_ns = {each: self._waited_ns.get(each, -1) for each in threads}
        longest_ns = 0
        for thread, before_ns in self._waited_ns.items():
            with suppress(OSError):
                self._waited_ns[thread] = waited_ns = int((thread / "schedstat").read_text().split()[1])
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

    async def watch_streams(self, number: int, tokens: Callable[[int], AsyncIterator[None]]) -> None:
        """Note the gaps of one stream after the other; `tokens` yields at each token of a stream."""
        name = f"stream {number}"
        while True:
            last_s, num_tokens = 0.0, 0
            try:
                async for _ in tokens(number):
                    now_s = time.monotonic()
                    if last_s:
                        self._note(GAP, (now_s - last_s) * 1000)
                    last_s, num_tokens = now_s, num_tokens + 1
                    self._open_since_s[name] = GAP, now_s
            except Exception:  # noqa: BLE001  (whatever ends a stream early is noted)
                num_tokens = 0
            self._open_since_s.pop(name, None)
            if num_tokens < STREAM_TOKENS:
                self._note(BROKEN, 0.0)
                await asyncio.sleep(0.1)

    async def http_tokens(self, number: int) -> AsyncIterator[None]:
        """Yield at each event of a streamed completion."""
        asked = {"model": "m", "prompt": f"stream {number}", "max_tokens": STREAM_TOKENS}
        body = json.dumps({**asked, "ignore_eos": True, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(f"{head}{self._key_line}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            while (line := await reader.readline()) and not line.startswith(b"data: [DONE]"):
                if line.startswith(b'data: {"'):
                    yield
        finally:
            writer.transport.abort()

    async def grpc_tokens(self, number: int) -> AsyncIterator[None]:
        """Yield at each response of a gRPC call."""
        import grpc
        from smg_grpc_proto.generated import vllm_engine_pb2 as pb
        from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

        params = pb.SamplingParams(max_tokens=STREAM_TOKENS, ignore_eos=True)
        ids = pb.TokenizedInput(input_ids=[5, 6, 7])
        asked = pb.GenerateRequest(
            request_id=f"w{number}-{time.monotonic()}", tokenized=ids, sampling_params=params, stream=True
        )
        async with grpc.aio.insecure_channel("{}:{}".format(*self._address)) as channel:
            async for response in stubs.VllmEngineStub(channel).Generate(asked):
                if response.HasField("chunk"):
                    yield


def _answers(pid: int) -> bool:
    """Whether a process that a server has started answers requests; others make what is costly."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


async def _watch(watcher: Watcher, protocol: str, seconds: float | None) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    jobs: list[Any] = [watcher.watch_itself(), *([] if protocol == GRPC else [watcher.watch_health()])]
    tokens = {HTTP: watcher.http_tokens, GRPC: watcher.grpc_tokens}.get(protocol)
    jobs += [] if tokens is None else [watcher.watch_streams(number, tokens) for number in range(NUM_STREAMS)]
    tasks = [asyncio.create_task(job) for job in jobs]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()
    watcher.note_open()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def watching(server: Running, file: Path, protocol: str, api_key: str | None = None) -> Iterator[None]:
    """The watcher of a server, in a process of its own."""
    command = [sys.executable, "-m", "workshop.attack.watcher", server.host, str(server.port), str(file)]
    command += ["--protocol", protocol, *([] if api_key is None else ["--api-key", api_key])]
    command += [] if server.pid is None else ["--pid", str(server.pid)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time that ended at an instant, without what the machine's load has added."""

    at_s: float
    ms: float
    took_ms: float


def within(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[float]:
    """The times of the samples that have an instant in a window."""
    return [each.ms for each in samples if each.at_s >= begin_s and each.at_s - each.took_ms / 1000 <= end_s]


def read_samples(file: Path, as_measured: bool) -> Mapping[str, list[Sample]]:
    """Samples by kind, each without the machine's load unless they count `as_measured`.

    The load is how long the watcher or the server waited for a processor, whichever was longer.
    """
    import numpy as np  # which the process that watches does without

    rows = [line.split() for line in file.read_text().splitlines()]
    found = [(row[0], float(row[1]), float(row[2])) for row in rows if len(row) == 3]
    own, waited = (np.array([each[1:] for each in found if each[0] == kind] or [(0.0, 0.0)]) for kind in (OWN, WAITED))
    samples: dict[str, list[Sample]] = {GAP: [], HEALTH: [], BROKEN: [], OWN: [], WAITED: []}
    for kind, at_s, ms in found:
        load_ms = 0.0
        if kind in (GAP, HEALTH) and not as_measured:
            begin_s = at_s - ms / 1000
            # A tick that was late ends a little after what it delayed, and the kernel counts a wait when it ends.
            begin, end = np.searchsorted(own[:, 0], (begin_s, at_s + TICK_S / 2))
            first, last = np.minimum(np.searchsorted(waited[:, 0], (begin_s, at_s)), len(waited) - 1)
            load_ms = max(float(own[begin:end, 1].max(initial=0.0)), float(waited[last, 1] - waited[first, 1]))
        samples[kind].append(Sample(at_s, max(ms - load_ms, 0.0), ms))
    return samples


def main() -> None:
    """Watch until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    parser.add_argument("--protocol", choices=(HTTP, GRPC, NONE), default=HTTP, help="of the streams that are read")
    parser.add_argument("--api-key")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this time")
    given = parser.parse_args()
    with open(given.file, "w", encoding="utf-8") as file:
        watcher = Watcher(given.host, given.port, file, given.api_key, given.pid)
        asyncio.run(_watch(watcher, given.protocol, given.seconds))


if __name__ == "__main__":
    main()
