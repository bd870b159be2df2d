"""Runs a server under load while instances are added, drained and killed, and checks for leftovers.

    python -m workshop.attack.soak [--seconds 600] [--seed 0] [--clients 16] [further flags of `blis serve`]

Clients send completions and chats, whole and streamed, with adapters, faults and tenants, and many hang up early. Every
second the server's memory and its metrics page are measured. At the end, when the clients have gone, the exit code is 1
unless memory has been flat, the metrics page has only the series of the instances that are there, every gauge and every
count of open requests is zero, and the server has logged no error.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any

import aiohttp

from workshop.attack.setups import BLIS, started
from workshop.processes import resident_mib
from workshop.server_scale import Server

MODEL = "qwen/qwen3-14b"
SETTINGS = (
    *("--num-instances", "3", "--routing-policy", "weighted", "--enable-instance-control", "--enable-fault-control"),
    *("--enable-lora", "--max-loras", "2", "--lora-modules", "ada=a", "bob=b", "eve=e"),
    *("--speed", "20", "--total-kv-blocks", "2000", "--max-model-len", "8192", "--instance-ports", "0"),
)
ADAPTERS = (MODEL, MODEL, "ada", "bob", "eve")
FAULTS = (
    *("", "", "", "", "trickle; trickle_bytes=400; trickle_pause_s=0.001", "disconnect; after_events=2", "429"),
    "stall; stall_s=0.1",
)
LEAST_READY, MOST_READY = 2, 6
CHANGE_EVERY_S = 0.4
MEASURE_EVERY_S = 1.0
WARM_UP_SHARE = 0.4
"""Share of the time before which memory may grow: caches and pools of the allocator fill up."""
FLAT_MIB = 12.0
FLAT_SHARE = 0.06
"""Limits on the excess of the mean of the last fifth over the mean of the fifth that follows the warm-up."""
LOOK_EVERY_S, NUM_LOOKS = 0.2, 150
"""Interval and number of checks of a server without clients, until it is idle."""
GAUGES = ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")
MOST_SERIES_BYTES = 60_000
"""Metrics of one instance."""


@dataclass(slots=True)
class Measured:
    """Samples of the server, second by second."""

    memory_mib: list[float] = field(default_factory=list)
    page_bytes: list[int] = field(default_factory=list)
    page_s: list[float] = field(default_factory=list)
    num_instances: list[int] = field(default_factory=list)
    replies: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)

    def growth_mib(self) -> tuple[float, float]:
        """Return the growth of memory after the warm-up, and its limit."""
        after = self.memory_mib[int(len(self.memory_mib) * WARM_UP_SHARE) :]
        fifth = max(1, len(after) // 3)
        first, last = fmean(after[:fifth]), fmean(after[-fifth:])
        return last - first, max(FLAT_MIB, FLAT_SHARE * first)


class Soak:
    """Clients, an operator and a measuring client, for one server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, seed: int) -> None:
        self.measured = Measured()
        self._server = server
        self._session = session
        self._random = Random(seed)

    async def run(self, seconds: float, num_clients: int) -> None:
        """Return when the time is up and all clients have gone."""
        until_s = time.monotonic() + seconds

        async def repeat(step: Callable[[], Awaitable[None]]) -> None:
            while time.monotonic() < until_s:
                await step()

        await asyncio.gather(
            *(repeat(self._request) for _ in range(num_clients)), repeat(self._change_instances), repeat(self._measure)
        )

    async def _call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        async with self._session.request(method, self._server.url + path, json=body, headers=headers) as reply:
            return reply.status, await reply.text()

    async def _request(self) -> None:
        """Send a request and read its reply, or leave in the middle."""
        random = self._random
        fault, leaves_after_s = random.choice(FAULTS), random.choice([None, None, None, 0.005, 0.03, 0.2])
        headers = {"X-Gateway-Inference-Fairness-Id": random.choice("tuv")} | ({"X-Blis-Fault": fault} if fault else {})
        try:
            async with asyncio.timeout(leaves_after_s):
                outcome = str((await self._call("POST", *_asked(random), **headers))[0])
        except (aiohttp.ClientError, TimeoutError) as error:
            is_left = isinstance(error, TimeoutError) and leaves_after_s
            outcome = "hung up" if is_left else type(error).__name__
        self.measured.replies[outcome] += 1
        await asyncio.sleep(random.random() * 0.05)

    async def _change_instances(self) -> None:
        """Let an instance come or go."""
        await asyncio.sleep(CHANGE_EVERY_S * (0.5 + self._random.random()))
        ready = [each["instance"] for each in await self._instances() if each["life"] == "ready"]
        body: dict[str, Any] | None
        if len(ready) <= LEAST_READY or (len(ready) < MOST_READY and self._random.random() < 0.5):
            kind, path, body = "add", "/blis/instances", {"startup_s": self._random.choice([0, 0, 2])}
        elif self._random.random() < 0.5:
            kind, path, body = "kill", f"/blis/instances/{self._random.choice(ready)}", None
        else:
            kind, path, body = "drain", f"/blis/instances/{self._random.choice(ready)}/drain", None
        status, _ = await self._call("DELETE" if kind == "kill" else "POST", path, body)
        self.measured.changes[f"{kind} {status}"] += 1

    async def _instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((await self._call("GET", "/blis/instances"))[1])["instances"]
        return found

    async def _measure(self) -> None:
        measured, began_s = self.measured, time.monotonic()
        _, page = await self._call("GET", "/metrics")
        measured.page_s.append(time.monotonic() - began_s)
        measured.page_bytes.append(len(page))
        measured.num_instances.append(len(set(re.findall(r'engine="(\d+)"', page))))
        measured.memory_mib.append(resident_mib(self._server.pid))
        await asyncio.sleep(MEASURE_EVERY_S)

    async def left_over(self) -> list[str]:
        """Resources of a server without clients, after a while in which it may finish."""
        found: list[str] = []
        for _ in range(NUM_LOOKS):
            if not (found := await self._not_zero()):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        return found

    async def _not_zero(self) -> list[str]:
        (_, page), instances = await self._call("GET", "/metrics"), await self._instances()
        gauges = [line for line in page.splitlines() if line.startswith(GAUGES)]
        found = [line for line in gauges if float(line.rpartition(" ")[2]) != 0]
        for each in instances:
            if each["num_in_flight"] or each["num_running"] or each["num_waiting"] or each["kv_cache_usage"]:
                found.append(f"instance {each}")
            if each["life"] in ("draining", "loading"):
                found.append(f"instance {each['instance']} is still {each['life']}")
        there = {str(each["instance"]) for each in instances if each["life"] not in ("killed", "drained")}
        labels = set(re.findall(r'engine="(\d+)"', page))
        if labels != there:
            found.append(f"series of {sorted(labels)}, but instances {sorted(there)}")
        return found


def _asked(random: Random) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request."""
    text = " ".join(random.choice(["alpha", "beta", "gamma"]) for _ in range(random.choice([1, 20, 300])))
    common = {
        "model": random.choice(ADAPTERS), "max_tokens": random.choice([1, 8, 60, 300]), "stream": random.random() < 0.6,
        "n": random.choice([1, 1, 1, 3]), "ignore_eos": random.random() < 0.5,
    }  # fmt: skip
    if random.random() < 0.5:
        return "/v1/completions", {**common, "prompt": text}
    return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": text}]}


async def soaked(server: Server, seconds: float, seed: int, num_clients: int) -> tuple[Measured, list[str]]:
    """Measurements, and the resources left when the clients have gone."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:
        soak = Soak(server, session, seed)
        await soak.run(seconds, num_clients)
        return soak.measured, await soak.left_over()


def judged(measured: Measured, left: Sequence[str], errors: Sequence[str]) -> list[str]:
    """Return the problems, in a line each."""
    wrong = [f"left over: {each}" for each in left] + [f"logged: {each}" for each in errors]
    growth, allowed = measured.growth_mib()
    if growth > allowed:
        wrong.append(f"memory grew by {growth:.1f} MiB after the warm-up, allowed are {allowed:.1f}")
    for num_bytes, number in zip(measured.page_bytes, measured.num_instances, strict=True):
        if num_bytes > MOST_SERIES_BYTES * (2 + number):
            wrong.append(f"a metrics page of {num_bytes:,} bytes with {number} instances")
            break
    if not measured.replies["200"] or not any(each.startswith("kill 200") for each in measured.changes):
        wrong.append(f"too little happened: {measured.replies}, {measured.changes}")
    return wrong


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=16)
    arguments, further = parser.parse_known_args()
    command = [*BLIS, "serve", MODEL, "--host", "127.0.0.1", "--port", "0", *SETTINGS, *further]
    with started(command) as running:
        assert running.pid is not None
        assert running.errors is not None
        server = Server(running.pid, f"http://{running.host}:{running.port}")
        measured, left = asyncio.run(soaked(server, arguments.seconds, arguments.seed, arguments.clients))
        said = running.errors.read_text().splitlines()
    errors = [line for line in said if line.startswith("error") or "Traceback" in line]
    wrong = judged(measured, left, errors)
    growth, allowed = measured.growth_mib()
    print(json.dumps({"replies": measured.replies, "changes": measured.changes}))
    samples = measured.memory_mib[:: max(1, len(measured.memory_mib) // 20)]
    print("memory:", *(f"{each:.0f}" for each in samples), "MiB")
    print(f"memory grew by {growth:.1f} MiB after the warm-up, allowed are {allowed:.1f}")
    print(f"metrics page: at most {max(measured.page_bytes):,} bytes, {max(measured.page_s) * 1000:.0f} ms")
    for each in wrong:
        print(each)
    print(f"{len(wrong)} things wrong after {arguments.seconds:g} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
