"""A router of another project in front of 20 of 500 endpoints: it routes by load, and survives the death of five.

    pip install sglang-router
    python -m workshop.router

Four of the 20 have synthetic load, behind which requests queue. The router sends requests to the
least busy endpoint when loads differ; after a first load five endpoints die in the midst of a second one.
"""

import argparse
import asyncio
import re
import socket
import subprocess
import sys
import time
from statistics import mean
from typing import Any

import aiohttp

from blis_sim.testing import serving
from workshop.ending import refuse, run_command

MODEL = "qwen/qwen3-14b"
FIRST_PORT = 22_000
NUM_ROUTED, NUM_LOADED, NUM_DYING = 20, 4, 5
STARTUP_S = 60
BACKGROUND = {"running": 1000, "prompt_tokens": 64}
_SERVED = re.compile(rb'^http_requests_total\{handler="/v1/completions"[^}]*\} ([0-9.]+)$', re.MULTILINE)


class Fleet:
    """The endpoints, by their places in the process."""

    def __init__(self, session: aiohttp.ClientSession, ports: list[int]) -> None:
        self._session = session
        self.ports = ports

    async def set(self, port: int, path: str, body: Any) -> None:
        async with self._session.post(f"http://127.0.0.1:{port}{path}", json=body) as reply:
            if reply.status >= 300:
                raise RuntimeError(f"{path}: status {reply.status}: {await reply.text()}")

    async def served(self) -> list[int]:
        """Return the number of completed requests of each endpoint; -1 for a dead endpoint."""
        return [await self._served(port) for port in self.ports]

    async def _served(self, port: int) -> int:
        try:
            async with self._session.get(f"http://127.0.0.1:{port}/metrics") as reply:
                return sum(int(float(each)) for each in _SERVED.findall(await reply.read()))
        except aiohttp.ClientError:
            return -1


async def send(session: aiohttp.ClientSession, url: str, seconds: float, rate: float) -> tuple[int, list[int]]:
    """Send requests at a rate: how many were answered, and the statuses of the others."""
    failures: list[int] = []

    async def ask(number: int) -> bool:
        body = {"model": MODEL, "prompt": f"{number} once upon a time", "max_tokens": 32, "ignore_eos": True}
        try:
            async with session.post(url + "/v1/completions", json=body) as reply:
                await reply.read()
                if reply.status != 200:
                    failures.append(reply.status)
                return reply.status == 200
        except aiohttp.ClientError:
            failures.append(0)
            return False

    start, tasks = time.monotonic(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(ask(number)))
    return sum(await asyncio.gather(*tasks)), failures


async def measure(url: str, ports: list[int], seconds: float, rate: float) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await healthy(session, url)
        fleet = Fleet(session, ports)
        for port in ports[:NUM_LOADED]:
            await fleet.set(port, "/blis/load", BACKGROUND)
        answered, failures = await send(session, url, seconds, rate)
        served = await fleet.served()
        loaded, others = served[:NUM_LOADED], served[NUM_LOADED:]
        print(
            f"{answered} answered, {len(failures)} failed; requests per endpoint: {mean(loaded):.1f} of those with",
            end="",
        )
        print(f" load, {mean(others):.1f} of others ({min(others)} to {max(others)})")
        dying = ports[-NUM_DYING:]
        sending = asyncio.create_task(send(session, url, seconds, rate))
        await asyncio.sleep(seconds / 4)
        await asyncio.gather(*(fleet.set(port, "/blis/faults", {"engine": {"death": None}}) for port in dying))
        answered, failures = await sending
        dead = sum(each < 0 for each in await fleet.served())
        print(f"{dead} endpoints dead: {answered} answered, {len(failures)} failed {sorted(set(failures))}")
        answered, failures = await send(session, url, seconds / 2, rate)
        print(f"afterwards: {answered} answered, {len(failures)} failed {sorted(set(failures))}")


async def healthy(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until the router answers."""
    until = time.monotonic() + STARTUP_S
    while time.monotonic() < until:
        try:
            async with session.get(url + "/v1/models") as reply:
                if reply.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    raise RuntimeError("the router does not answer")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rate", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--router", default=sys.executable, help="Python interpreter that has sglang-router")
    given = parser.parse_args()
    if subprocess.run([given.router, "-c", "import sglang_router"], stderr=subprocess.DEVNULL, check=False).returncode:
        refuse(f"{given.router} has no sglang-router: pip install sglang-router")
    step = given.count // NUM_ROUTED
    ports = [FIRST_PORT + place * step for place in range(NUM_ROUTED)]
    words = ["-m", "blis_sim.cli", "serve", MODEL, "--host", "127.0.0.1", "--enable-state-control"]
    words += ["--enable-fault-control", "--ports", f"{FIRST_PORT}-{FIRST_PORT + given.count - 1}"]
    with serving(words) as server:
        print(server.log.splitlines()[0])
        port = free_port()
        routing = [given.router, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        routing += ["--policy", "cache_aware", "--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1"]
        routing += ["--prometheus-port", str(free_port()), "--log-level", "error", "--health-check-interval-secs", "2"]
        routing += ["--worker-urls", *(f"http://127.0.0.1:{each}" for each in ports)]
        router = subprocess.Popen(routing, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(measure(f"http://127.0.0.1:{port}", ports, given.seconds, given.rate))
        finally:
            router.terminate()
            router.wait(30)


if __name__ == "__main__":
    run_command(main)
