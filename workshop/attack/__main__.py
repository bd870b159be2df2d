"""Attacks every interface that takes bytes, and prints one table of what the other clients notice.

    python -m workshop.attack [--seconds 6] [--only WORD|WORD] [--as-measured]

Each interface is attacked for some seconds after two quiet ones, while a process of its own reads streams of the same
server and another one those of a plain aiohttp server, the control. A row has by how much the gaps of the streams grew,
p99 and at most, beside those of the control, how long /health took, by how many megabytes memory grew, and whether the
bounds were met: 50 ms, 100 ms, 100 ms, 200 MB, no stream cut, no traceback. A round takes three minutes at most. The
exit code is 1 when a bound is broken. One broken in three rounds on an idle machine is the server's doing.
"""

import asyncio
import base64
import gzip
import itertools
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.wire.hostile_constraints import HOSTILE
from workshop.attack import drawn, files
from workshop.attack.costly import COSTLY, text, turns
from workshop.attack.hostile_upstream import NUMBER_HEADER, REPLIES
from workshop.attack.sending import Message, exchange
from workshop.attack.setups import BLIS, PARSERS, SETUPS, Running, Setup, running, started
from workshop.attack.stalls import Bounds, Effect, Table, effect_of
from workshop.attack.watcher import GRPC, HTTP

PATIENCE_S = 3.0
BEFORE_S = 2.0
Act = Callable[[Running, "Until"], None]


@dataclass(frozen=True, slots=True)
class Until:
    """The end of an attack."""

    at_s: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.at_s


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface: how its server is started, and what is sent to it until the time is over."""

    name: str
    setup: Setup
    act: Act
    protocol: str = HTTP
    program: Callable[[ExitStack], Running] | None = None
    """Starts another server than that of `setup`."""


def post(path: str, body: bytes, method: str = "POST", **headers: str) -> Message:
    return Message(method=method, path=path, body=body).with_headers(**headers)


def in_turn(messages: Callable[[], Iterable[Message]]) -> Act:
    """Send requests one after the other, again and again, and read each reply for a while."""

    def act(server: Running, until: Until) -> None:
        while True:
            for each in messages():
                if until.is_over:
                    return
                exchange(server.host, server.port, [each.serialised()], PATIENCE_S)

    return act


def http(server: Running, until: Until) -> None:
    """Requests as hypothesis and schemathesis draw them."""
    for number in range(1000):
        if until.is_over:
            return
        if found := drawn.attack(SETUPS[0], server, 25, number):
            raise AssertionError(found)


def named(*names: str) -> Iterator[Message]:
    """The costly requests of these names."""
    return (post(each.path, each.data()) for each in (*COSTLY, *HOSTILE) if each.name in names)


def journal() -> Iterator[Message]:
    """Queries of a full journal, and fixtures whose patterns take long on large chats."""
    fixture = {"match": {"body_regex": "(a|b|ab)*c$"}, "reply": {"text": "x"}}
    yield post("/blis/playback", json.dumps({"fixtures": [fixture] * 20}).encode())
    yield from [post("/v1/chat/completions", json.dumps(turns(2)).encode())] * 50
    yield post("/v1/chat/completions", json.dumps(turns(300_000)).encode())
    for query in ("?contains=" + "a" * 3000, "", "?path=/v1/chat/completions&contains=hi"):
        yield post(f"/blis/requests{query}", b"", "GET")
    yield post("/blis/requests/assert", json.dumps({"contains": "i" * 100_000, "count": 1}).encode())
    yield post("/blis/playback", b'{"fixtures": [' * 20_000)


def metrics() -> Iterator[Message]:
    """Scrapes in every format, with names and with odd headers."""
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0", "*/*;q=" + "9" * 3000, ""):
        for path in ("/metrics", "/metrics?" + "name[]=vllm:num_requests_running&" * 300, "/blis/metrics/history"):
            yield post(path, b"", "GET", Accept=accept, Accept_Encoding="gzip")


def grpc_calls(server: Running, until: Until) -> None:
    """Large, deep, broken and many calls."""
    import grpc

    generate, abort = (f"/vllm.grpc.engine.VllmEngine/{name}" for name in ("Generate", "Abort"))

    def varint(number: int) -> bytes:
        low = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
        return bytes([*(each | 128 for each in low[:-1]), low[-1]])

    def part(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    ids = part(2, part(2, b"\x05" * 300_000))
    calls = (
        b"\xff" * 1000, part(1, b"\xff\xfe"), ids, part(3, b"word " * 6_000_000), part(1, b"r" * 900_000) + ids,
        part(4, b"\x08" + varint(2**62)), os.urandom(100_000), b"", part(2, part(2, b"\x05" * 39_000)),
    )  # fmt: skip
    with grpc.insecure_channel(f"{server.host}:{server.port}") as channel:
        while not until.is_over:
            streams = [channel.unary_stream(generate)(each, timeout=PATIENCE_S) for each in calls * 2]
            streams.append(channel.unary_stream(abort)(part(1, b"x") * 200_000, timeout=PATIENCE_S))
            for stream in streams:
                with suppress(grpc.RpcError):
                    list(stream)


def web_socket(server: Running, until: Until) -> None:
    """Frames that are too deep, too many, too long, or no frames."""
    audio = base64.b64encode(bytes(300_000)).decode()
    session = {"type": "session.update", "model": "m"}
    events = (
        session, {"type": "input_audio_buffer.append", "audio": audio}, {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.append", "audio": "\ud800"}, {"type": ["x"] * 100_000}, {"type": "x" * 900_000},
    )  # fmt: skip
    deep = ("[" * 100_000, f"[{','.join(['[]'] * 300_000)}]", "\0", '{"type":' * 3000, "NaN")

    async def one(session_of: Any, number: int) -> None:
        async with session_of.ws_connect(f"http://{server.host}:{server.port}/v1/realtime", max_msg_size=0) as socket:
            for each in (*(json.dumps(event) for event in events), deep[number % len(deep)]):
                await socket.send_str(each)
            await socket.send_bytes(os.urandom(10_000))
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    async for _ in socket:
                        pass

    async def all_of_them() -> None:
        import aiohttp

        async with aiohttp.ClientSession() as session_of:
            number = 0
            while not until.is_over:
                await asyncio.gather(*(one(session_of, number + each) for each in range(4)), return_exceptions=True)
                number += 4

    asyncio.run(all_of_them())
    head = Message(method="GET", path="/v1/realtime", headers={
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
    }).serialised(adds_length=False)  # fmt: skip
    for frame in (b"\xff" * 500, b"\x81\xff" + b"\x7f" * 8, b"\x81\x7e\xff\xff", b"\xc1\x85abcdabcda"):
        exchange(server.host, server.port, [head, frame], 0.3)


def proxied_requests() -> Iterator[Message]:
    """Hostile requests through the recording proxy."""
    yield post("/v1/completions", gzip.compress(bytes(100_000_000)), Content_Encoding="gzip")
    yield from named("json values", "turns", "json text", "pictures", "unknown keys")
    secrets = {"api_key": "sk-1234567890abcdef", "messages": [{"content": "Bearer abcdefghijkl " * 50_000}]}
    yield post("/v1/chat/completions", json.dumps(secrets).encode())


_PROMPTS = itertools.count()


def hostile_replies() -> Iterator[Message]:
    """What a hostile server behind a proxy replies to; other words each time, which no earlier reply answers."""
    for number in range(len(REPLIES)):
        yield post("/v1/completions", b'{"prompt": "%d \\ud83d"}' % next(_PROMPTS), **{NUMBER_HEADER: str(number)})


def forwarded() -> Iterator[Message]:
    """Hostile replies, and large requests that are looked up, forwarded and kept."""
    yield from hostile_replies()
    yield post("/v1/chat/completions", json.dumps(turns(200_000)).encode())
    yield post("/v1/completions", text(zlib.compress(b"x").hex().encode() * 1_000_000))


def upstream(stack: ExitStack) -> Running:
    """A plain aiohttp server with even streams and hostile replies."""
    return stack.enter_context(started([sys.executable, "-m", "workshop.attack.hostile_upstream"]))


def proxy(stack: ExitStack) -> Running:
    """A recording proxy in front of such a server."""
    behind, folder = upstream(stack), stack.enter_context(tempfile.TemporaryDirectory())
    command = [*BLIS, "observe", "--url", f"http://{behind.host}:{behind.port}", "--output", f"{folder}/r"]
    command += ["--proxy", "0", "--proxy-host", "127.0.0.1", "--rtt-ms", "0", "--model", "m", "--record-content"]
    return stack.enter_context(started(command))


def playing_forward(stack: ExitStack) -> Running:
    """A server that forwards what it has no recorded reply to."""
    behind, folder = upstream(stack), stack.enter_context(tempfile.TemporaryDirectory())
    file = Path(folder) / "r.content.jsonl"
    file.write_text((Path(__file__).parent / "sample_files" / "recording.jsonl").read_text())
    flags = ("--playback", str(file), "--playback-miss", "forward", "--playback-upstream")
    setup = Setup(name="playback", flags=(*flags, f"http://{behind.host}:{behind.port}"))
    return stack.enter_context(running(setup))


COMMON_HEAVY = ("n chat stream", "turns", "json values", "prompt logprobs", "bad turns", "template loop", "big body")
DEMANDS = (
    *("backtracking pattern on an enum", "allOf doubling", "grammar that doubles"),
    *("enum of 200,000", "deep groups"),
)
INSTANCES = ("--num-instances", "64", "--total-kv-blocks", "3000")
CONTROLLED = ("--enable-playback-control", "--max-body-mb", "300")
BODIES, CONSTRAINTS = Setup(name="h", flags=(*PARSERS, *CONTROLLED)), Setup(name="c", flags=PARSERS)
INTERFACES = (
    Interface("HTTP, drawn", SETUPS[0], http),
    Interface("HTTP, costly bodies", BODIES, in_turn(lambda: named(*COMMON_HEAVY))),
    Interface("HTTP, constraints", CONSTRAINTS, in_turn(lambda: named(*DEMANDS))),
    Interface("gRPC", Setup(name="g", flags=("--grpc",)), grpc_calls, GRPC),
    Interface("WebSocket", Setup(name="w", flags=("--task", "realtime,generate")), web_socket),
    Interface("proxy, requests", SETUPS[0], in_turn(proxied_requests), program=proxy),
    Interface("proxy, replies", SETUPS[0], in_turn(hostile_replies), program=proxy),
    Interface("playback and journal", Setup(name="j", flags=CONTROLLED), in_turn(journal)),
    Interface("playback, forwarded", SETUPS[0], in_turn(forwarded), program=playing_forward),
    Interface("metrics of 64 instances", Setup(name="m", flags=INSTANCES), in_turn(metrics)),
)


def attacked(interface: Interface, seconds: float, as_measured: bool) -> tuple[Effect, Effect, list[str]]:
    """Attack one interface. Returns the effect on it and on the control, and the last lines of tracebacks."""
    with ExitStack() as stack:
        server = stack.enter_context(running(interface.setup)) if not interface.program else interface.program(stack)
        control, found = upstream(stack), list[Effect]()

        def act() -> None:
            interface.act(server, Until(time.monotonic() + seconds))

        def both() -> None:
            found.append(effect_of(act, server, interface.protocol, None, BEFORE_S / 2, as_measured))

        beside = effect_of(both, control, before_s=BEFORE_S / 2, as_measured=True)
        return found[0], beside, server.tracebacks()


def file_formats(seconds: float) -> tuple[int, list[str]]:
    """Attack commands that read files, one after the other. Returns how many files, and the findings."""
    until, count, bad = Until(time.monotonic() + seconds), 0, list[str]()
    for number in range(1000):
        if until.is_over:
            break
        outcomes, found = files.attack(20, number)
        count += outcomes.total()
        bad += [f"{name}: {finding}" for name, finding in found]
    return count, bad


def main() -> int:
    """Print the table. Returns the exit code."""
    parser = Bounds.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each interface is attacked")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="interfaces with this in their name, or words with |"
    )
    given = parser.parse_args()
    table, words = Table(Bounds.of(given)), given.only.split("|")
    for each in (found for found in INTERFACES if any(word in found.name for word in words)):
        effect, control, tracebacks = attacked(each, given.seconds, given.as_measured)
        remarks = [f"{effect.num_broken} streams cut"] if effect.num_broken else []
        beside = f"{control.gap_p99_growth_ms:+.0f}, {control.gap_worst_growth_ms:+.0f}"
        table.add(f"{each.name} (control {beside})", effect, remarks + [f"traceback: {line}" for line in tracebacks])
    if not any(word in "files of all formats" for word in words):
        return table.is_broken
    count, bad = file_formats(given.seconds)
    print(f"files of all formats: {count} in turn, {'; '.join(bad) or 'met'}")
    return table.is_broken or bool(bad)


if __name__ == "__main__":
    sys.exit(main())
