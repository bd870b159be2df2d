"""Demands on an answer that are small to send and costly to meet, and the effect of each on all other requests.

    python -m workshop.attack.constraints [--only NAME] [--times 3]

A server is started, four streams and /health are watched, and each demand is sent a few times. A line for each has how
long the gaps of the streams and the answers of /health were meanwhile, how late the watching process itself was woken,
and by how much the memory of the server and its workers grew.

A demand is over the bounds, and the exit code 1, where the p99 gap of the streams grows by more than 50 ms or the
longest by more than 100 ms, /health takes more than 100 ms, each beyond how late the watcher was woken, or memory
grows by more than 200 MiB.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workshop.server_scale import completion, running_server

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
RESPONSES, MESSAGES, INVOCATIONS = "/v1/responses", "/v1/messages", "/invocations"
USER = [{"role": "user", "content": "hi"}]

GAP_P99_GROWTH_MS, GAP_GROWTH_MS, HEALTH_MS, MEMORY_MIB = 50.0, 100.0, 100.0, 200.0
STEP_MS = 10
NUM_STREAMS = 4
HEALTH_EVERY_S = 0.02
QUIET_S = 2.0
PATIENCE_S = 6.0
"""Timeout of the client: a long reply takes a minute."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request; `body` makes what is to be sent as JSON."""

    name: str
    path: str
    body: Callable[[], dict[str, Any]]


def demand(**kinds: Any) -> dict[str, Any]:
    """A completion whose text has to have a form."""
    return {"prompt": "hi", "max_tokens": 2000, "structured_outputs": kinds}


def answer_of(schema: Any) -> dict[str, Any]:
    """A chat whose answer has to be a value of a schema."""
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return {"messages": USER, "max_tokens": 2000, "response_format": response_format}


def call_of(schema: Any, **fields: Any) -> dict[str, Any]:
    """A chat that has to call a function with such arguments."""
    function = {"name": "f", "parameters": schema, **fields}
    return {"messages": USER, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def doubling(keyword: str, levels: int = 28) -> dict[str, Any]:
    """A schema in which each level refers to the next one twice."""
    kinds: dict[str, Any] = {f"d{each}": {keyword: [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(levels)}
    return {"$defs": {**kinds, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def branching(levels: int = 28) -> dict[str, Any]:
    """A schema in which each object holds the next one twice."""
    kinds: dict[str, Any] = {}
    for each in range(levels):
        part = {"$ref": f"#/$defs/d{each + 1}"}
        kinds[f"d{each}"] = {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]}
    return {"$defs": {**kinds, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def rules(count: int) -> str:
    """A grammar of so many rules, each of which goes on with the next."""
    lines = [f'r{each} ::= "a" r{each + 1} | r{each + 1} "b"' for each in range(count)]
    return "\n".join(["root ::= r0", *lines, f'r{count} ::= "c"'])


def doubled_rules(levels: int) -> str:
    """A grammar whose only sentence has a letter for each path through so many levels of two."""
    lines = [f"r{each} ::= r{each + 1} r{each + 1}" for each in range(levels)]
    return "\n".join(["root ::= r0", *lines, f'r{levels} ::= "a"'])


def unique(count: int) -> dict[str, Any]:
    """An array of different items, of which there are hardly more than it needs."""
    return {"type": "array", "minItems": count, "uniqueItems": True, "items": {"type": "integer", "maximum": count}}


def array_of(item: Any, count: int) -> dict[str, Any]:
    """An array of at least so many items."""
    return {"type": "array", "minItems": count, "items": item}


def patterned(pattern: str, name: str) -> dict[str, Any]:
    """An object that has to have one member, whose name a pattern is tried on."""
    return {"type": "object", "required": [name], "patternProperties": {pattern: {"type": "string"}}}


BACKTRACKING = "^(" + "|".join(["a+", "(a|a)*", "(a*)*"] * 12) + ")+$"
LONG_NAME = "a" * 60 + "!"
RECURSIVE = {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}}
WIDE = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(20_000)}}
REPEATING = {"max_pattern_size": 10**6, "min_pattern_size": 1, "min_count": 3}

HOSTILE: Sequence[Hostile] = (
    Hostile("backtracking pattern on an enum", CHAT, lambda: answer_of({"enum": [LONG_NAME], "pattern": BACKTRACKING})),
    Hostile("backtracking name", CHAT, lambda: answer_of({"allOf": [patterned(BACKTRACKING, LONG_NAME)]})),
    Hostile("backtracking unevaluated", CHAT, lambda: answer_of(
        {**patterned(BACKTRACKING, LONG_NAME), "unevaluatedProperties": False})),
    Hostile("backtracking arguments", CHAT, lambda: call_of({"allOf": [patterned(BACKTRACKING, LONG_NAME)]})),
    Hostile("allOf doubling", CHAT, lambda: answer_of(doubling("allOf"))),
    Hostile("oneOf doubling", CHAT, lambda: answer_of(doubling("oneOf"))),
    Hostile("anyOf doubling", CHAT, lambda: answer_of(doubling("anyOf"))),
    Hostile("doubling objects", CHAT, lambda: answer_of(branching())),
    Hostile("doubling strict arguments", CHAT, lambda: call_of(doubling("allOf"), strict=True)),
    Hostile("doubling on invocations", INVOCATIONS, lambda: answer_of(doubling("allOf"))),
    Hostile("doubling in a response", RESPONSES, lambda: {
        "input": "hi", "text": {"format": {"type": "json_schema", "name": "s", "schema": doubling("allOf")}}}),
    Hostile("doubling in a message", MESSAGES, lambda: {
        "model": "m", "max_tokens": 100, "messages": USER, "tool_choice": {"type": "any"},
        "tools": [{"name": "f", "input_schema": doubling("allOf")}]}),
    Hostile("200 alternatives", COMPLETIONS, lambda: demand(regex="|".join(["[a-z]{30000}"] * 200))),
    Hostile("long repeat", COMPLETIONS, lambda: demand(regex="a{100000}")),
    Hostile("nested repeats", COMPLETIONS, lambda: demand(regex="((a{300}){300}){0,300}")),
    Hostile("nested stars", COMPLETIONS, lambda: demand(regex="(" * 150 + "a" + "*)*" * 150)),
    Hostile("4 MB regex", COMPLETIONS, lambda: demand(regex="ab|" * 1_300_000 + "c")),
    Hostile("4 MB text", COMPLETIONS, lambda: demand(regex="a" * 4_000_000)),
    Hostile("grammar of 3,000 rules", COMPLETIONS, lambda: demand(grammar=rules(3000))),
    Hostile("grammar that doubles", COMPLETIONS, lambda: demand(grammar=doubled_rules(16))),
    Hostile("minItems x minLength", CHAT, lambda: answer_of(array_of({"type": "string", "minLength": 10_000}, 9000))),
    Hostile("minItems x minItems", CHAT, lambda: answer_of(array_of(array_of({"type": "null"}, 100), 150))),
    Hostile("long answer", CHAT, lambda: {**answer_of(array_of({"type": "integer"}, 9000)), "max_tokens": 30_000}),
    Hostile("uniqueItems", CHAT, lambda: answer_of(unique(9000))),
    Hostile("references to itself", CHAT, lambda: answer_of(RECURSIVE)),
    Hostile("not itself", CHAT, lambda: answer_of({"not": {"$ref": "#"}})),
    Hostile("enum of 200,000", CHAT, lambda: answer_of({"enum": [f"v{each}" for each in range(200_000)]})),
    Hostile("200,000 choices", COMPLETIONS, lambda: demand(choice=[f"v{each}" for each in range(200_000)])),
    Hostile("20,000 properties", CHAT, lambda: answer_of({**WIDE, "required": list(WIDE["properties"])})),
    Hostile("20,000 alternatives", CHAT, lambda: answer_of({"title": "t", "anyOf": [{"type": "string"}] * 20_000})),
    Hostile("2,000 strict functions", CHAT, lambda: {
        "messages": USER, "tools": call_of({"type": "object"}, strict=True)["tools"] * 2000}),
    Hostile("schema as 2 MB of text", COMPLETIONS, lambda: demand(json=json.dumps({"enum": ["x" * 50] * 40_000}))),
    Hostile("structural tag", COMPLETIONS, lambda: demand(structural_tag=json.dumps({
        "format": {"type": "repeat", "min": 1000, "max": 1000,
                   "content": {"type": "repeat", "min": 1000, "max": 1000,
                               "content": {"type": "const_string", "value": "a"}}}}))),
    Hostile("repetition_detection", COMPLETIONS, lambda: {
        "prompt": "hi", "max_tokens": 30_000, "ignore_eos": True, "repetition_detection": REPEATING}),
    Hostile("repetition of choices", COMPLETIONS, lambda: {
        **demand(choice=["".join("ab"[bin(each).count("1") % 2] + " " for each in range(30_000))]),
        "max_tokens": 30_000, "repetition_detection": REPEATING}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The milliseconds of one kind of sample: percentile 99 and the longest."""

    p99_ms: float
    longest_ms: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "LatencySummary":
        ordered = sorted(samples) or [0.0]
        return cls(ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])


# --- the process that watches ---


async def _watch_streams(address: tuple[str, int], gaps_ms: list[float]) -> None:
    while True:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(completion("hi", 2000, stream=True))
        last_s = 0.0
        while line := await reader.readline():
            now_s = time.monotonic()
            if line.startswith(b"data: {"):
                gaps_ms += [(now_s - last_s) * 1e3] if last_s else []
                last_s = now_s
            elif line.startswith(b"data: [DONE]"):
                break
        writer.transport.abort()


async def _watch_health(address: tuple[str, int], answers_ms: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await reader.readline()
        answers_ms.append((time.monotonic() - began_s) * 1e3)
        writer.transport.abort()
        await asyncio.sleep(HEALTH_EVERY_S)


async def _measure_wakeup_delay(late_ms: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(STEP_MS / 1e3)
        late_ms.append((time.monotonic() - began_s) * 1e3 - STEP_MS)


def _watch(address: tuple[str, int], end: Connection) -> None:
    """Watch for good. Whatever comes over `end` is answered with the samples since the last time."""

    async def watch() -> None:
        samples: tuple[list[float], list[float], list[float]] = ([], [], [])

        def report() -> None:
            end.recv()
            end.send([LatencySummary.of(each) for each in samples])
            for each in samples:
                each.clear()

        asyncio.get_running_loop().add_reader(end.fileno(), report)
        streams = [_watch_streams(address, samples[0]) for _ in range(NUM_STREAMS)]
        await asyncio.gather(*streams, _watch_health(address, samples[1]), _measure_wakeup_delay(samples[2]))

    with suppress(EOFError, OSError, KeyboardInterrupt):
        asyncio.run(watch())


# --- the process that attacks ---


async def send(address: tuple[str, int], hostile: Hostile) -> str:
    """The status of the reply, once all of it has come or the client has waited for it in vain."""
    body = json.dumps(hostile.body()).encode()
    reader, writer = await asyncio.open_connection(*address)
    head = f"POST {hostile.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            return (await reader.read())[9:12].decode() or "none"
    writer.transport.abort()
    return "left"


def pss_mib(pid: int) -> float:
    """Memory of a process and all below it, pages that they share counted once."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    own_kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own_kib / 1024 + sum(_pss_if_alive(int(each)) for each in below)


def _pss_if_alive(pid: int) -> float:
    try:
        return pss_mib(pid)
    except (OSError, StopIteration):
        return 0.0


async def attack(address: tuple[str, int], pid: int, hostile: Hostile, times: int) -> tuple[list[str], float]:
    """The statuses of so many requests, one after the other, and the most memory that there was meanwhile."""
    statuses, most_mib = list[str](), pss_mib(pid)
    for _ in range(times):
        sending = asyncio.create_task(send(address, hostile))
        while not sending.done():
            most_mib = max(most_mib, pss_mib(pid))
            await asyncio.wait([sending], timeout=0.05)
        statuses.append(sending.result())
    return statuses, most_mib


def _verdicts(only: str, times: int) -> Iterator[bool]:
    arguments = (
        "--served-model-name",
        "m",
        "--latency-calculator",
        "constant",
        "--inter-token-latency-ms",
        str(STEP_MS),
    )
    further = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-body-mb", "64")
    with running_server(*arguments, *further) as server:
        near, far = multiprocessing.Pipe()
        watcher = multiprocessing.get_context("spawn").Process(target=_watch, args=(server.address, far), daemon=True)
        watcher.start()

        def seen() -> list[LatencySummary]:
            near.send("report")
            found: list[LatencySummary] = near.recv()
            return found

        time.sleep(2)
        seen()
        for hostile in HOSTILE:
            if only in hostile.name:
                time.sleep(QUIET_S)
                before, memory_mib = seen(), pss_mib(server.pid)
                began_s = time.monotonic()
                statuses, most_mib = asyncio.run(attack(server.address, server.pid, hostile, times))
                took_s = (time.monotonic() - began_s) / times
                yield _verdict(hostile, statuses, took_s, before, seen(), most_mib - memory_mib)
        watcher.kill()


def _verdict(
    hostile: Hostile,
    statuses: Sequence[str],
    took_s: float,
    before: Sequence[LatencySummary],
    after: Sequence[LatencySummary],
    mib: float,
) -> bool:
    """Print what one demand did; whether it kept within the bounds, what the watcher was late taken off."""
    (gap, health, late), (quiet, _, _) = after, before
    holds = (
        gap.p99_ms - quiet.p99_ms <= GAP_P99_GROWTH_MS + late.p99_ms
        and gap.longest_ms - quiet.longest_ms <= GAP_GROWTH_MS + late.longest_ms
        and health.longest_ms <= HEALTH_MS + late.longest_ms
        and mib <= MEMORY_MIB
    )
    print(
        f"{'ok  ' if holds else 'OVER'} {hostile.name:34} {','.join(sorted(set(statuses))):8} {took_s:5.1f} s  "
        f"gap p99 {quiet.p99_ms:3.0f} -> {gap.p99_ms:3.0f} ms, "
        f"longest {quiet.longest_ms:3.0f} -> {gap.longest_ms:3.0f} ms  "
        f"/health {health.longest_ms:3.0f} ms  own {late.p99_ms:3.0f}/{late.longest_ms:3.0f} ms  {mib:+4.0f} MiB",
        flush=True,
    )
    return holds


def main() -> None:
    """Measure all demands, or those whose name has a text in it. Exit 1 if one is over the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="demands with this in their name")
    parser.add_argument("--times", type=int, default=3, help="how often each is sent")
    given = parser.parse_args()
    sys.exit(not all(list(_verdicts(given.only, given.times))))


if __name__ == "__main__":
    main()
