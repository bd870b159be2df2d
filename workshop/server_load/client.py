"""A client that costs little beside the server: it counts events without parsing them, and records their times.

python -m workshop.server_load.client PORT CASE    a `Case` as JSON; prints a `Measured` as JSON
"""

import asyncio
import gc
import json
import time
from array import array
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import uvloop

from workshop.ending import positional, run_command

EVENT_END = b"\n\n"
BODY_END = b"\r\n0\r\n\r\n"
HOST = "127.0.0.1"
NUM_EVENTS_BESIDE_TOKENS = 1
"""`[DONE]`, which ends a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Streams to open and what is expected of them. Requests start evenly spread over `spread_s`.

    That must be less than servers keep idle connections open, for all are made beforehand.
    """

    num_requests: int
    num_tokens: int
    spread_s: float = 0.0
    gap_ms: float = 0.0
    """The modelled time between tokens; 0 when gaps are not looked at."""
    path: str = "/v1/completions"
    model: str = "qwen/qwen3-14b"
    stream: bool = True
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of a case. Times are seconds, errors of gaps absolute."""

    num_events: int
    num_failed: int
    wall_s: float
    """From the first request to the last event."""
    ttft_p50_ms: float = 0.0
    ttft_p99_ms: float = 0.0
    drift_percent: float = 0.0
    """Mean over the streams of how far the mean gap is off."""
    gap_error_p50_ms: float = 0.0
    gap_error_p99_ms: float = 0.0


class Stream(asyncio.Protocol):
    """One connection with one request, and the instants at which events came."""

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.sent_at_s = 0.0
        self.num_events = 0
        self.instants = array("d")
        self.counts = array("q")
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def send(self, request: bytes) -> None:
        """Send the request."""
        assert self._transport is not None
        self.sent_at_s = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        count = data.count(EVENT_END)
        tail = self._tail
        if tail[-1:] == b"\n" and data[:1] == b"\n":
            count += 1
        if count:
            self.num_events += count
            self.instants.append(now_s)
            self.counts.append(count)
        self._tail = (tail + data[-16:])[-16:]
        if self._tail.endswith(BODY_END) and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def token_instants(self, num_tokens: int) -> npt.NDArray[np.float64]:
        """Return the arrival time of each token; several may be equal."""
        return np.repeat(np.asarray(self.instants), np.asarray(self.counts))[:num_tokens]


def request_bytes(case: Case) -> bytes:
    """The request, which is the same for all."""
    asked = {
        "model": case.model,
        "prompt": "Why is the sky blue?",
        "max_tokens": case.num_tokens,
        "min_tokens": case.num_tokens,
        "ignore_eos": True,
        "stream": case.stream,
    }
    body = json.dumps(asked).encode()
    head = (
        f"POST {case.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(port: int, case: Case) -> Measured:
    """Run a case: connections are made before the clock starts."""
    loop = asyncio.get_running_loop()
    streams: list[Stream] = []
    for _ in range(case.num_requests):
        _, stream = await loop.create_connection(Stream, HOST, port)
        streams.append(stream)
    request = request_bytes(case)
    gc.collect()
    gc.disable()
    started_s = time.monotonic()
    for number, stream in enumerate(streams):
        left_s = started_s + number * case.spread_s / case.num_requests - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        stream.send(request)
    await asyncio.wait([stream.done for stream in streams], timeout=case.timeout_s)
    measured = summarized(case, streams, started_s)
    for stream in streams:
        stream.close()
    return measured


def summarized(case: Case, streams: list[Stream], started_s: float) -> Measured:
    """The figures of a case."""
    expected = case.num_tokens + NUM_EVENTS_BESIDE_TOKENS
    whole = [stream for stream in streams if stream.num_events >= expected]
    ttft_ms = [(stream.instants[0] - stream.sent_at_s) * 1000 for stream in whole] or [np.nan]
    p50_ms, p99_ms = np.percentile(ttft_ms, (50, 99))
    measured = Measured(
        num_events=sum(stream.num_events for stream in streams),
        num_failed=len(streams) - len(whole),
        wall_s=max((stream.instants[-1] for stream in whole), default=started_s) - started_s,
        ttft_p50_ms=float(p50_ms),
        ttft_p99_ms=float(p99_ms),
    )
    if case.gap_ms and whole:
        gaps_ms = [np.diff(stream.token_instants(case.num_tokens)) * 1000 for stream in whole]
        errors = np.percentile(np.abs(np.concatenate(gaps_ms) - case.gap_ms), (50, 99))
        drift = np.mean([gaps.mean() / case.gap_ms - 1 for gaps in gaps_ms])
        return replace(
            measured,
            drift_percent=float(drift) * 100,
            gap_error_p50_ms=float(errors[0]),
            gap_error_p99_ms=float(errors[1]),
        )
    return measured


def main() -> None:
    """Run the case that is given as JSON."""
    given_port, given_case = positional("PORT", "CASE")
    port, case = int(given_port), Case(**json.loads(given_case))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(measure(port, case)))))


if __name__ == "__main__":
    run_command(main)
