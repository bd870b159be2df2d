"""Memory and processor time of hundreds of endpoints in one process, idle and at a rate of requests each.

python -m workshop.endpoints --count 500 --rate 1 --seconds 20
"""

import argparse
import asyncio
import time

import aiohttp

from blis_sim.testing import serving
from workshop.processes import cpu_s, resident_mib

FIRST_PORT = 21_000


async def ask_all(ports: list[int], rate: float, seconds: float) -> list[float]:
    """One client for each endpoint; the seconds that each reply took."""
    took: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(port: int) -> None:
            began = time.monotonic()
            body = {"prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True}
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as reply:
                await reply.read()
                assert reply.status == 200
            took.append(time.monotonic() - began)

        async def keep_asking(place: int, port: int) -> None:
            start = time.monotonic() + place / len(ports) / rate
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
                await ask(port)

        await asyncio.gather(*(keep_asking(place, port) for place, port in enumerate(ports)))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second and endpoint")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    ports = list(range(FIRST_PORT, FIRST_PORT + given.count))
    words = ["-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", "--host", "127.0.0.1"]
    began = time.monotonic()
    with serving([*words, "--ports", f"{ports[0]}-{ports[-1]}"]) as server:
        pid = server.process.pid
        print(server.log.splitlines()[0], f"after {time.monotonic() - began:.1f} s")
        print(f"idle: {resident_mib(pid):.0f} MiB")
        before = cpu_s(pid)
        time.sleep(3)
        print(f"idle: {(cpu_s(pid) - before) / 3:.3f} cores")
        before, began = cpu_s(pid), time.monotonic()
        took = sorted(asyncio.run(ask_all(ports, given.rate, given.seconds)))
        cores = (cpu_s(pid) - before) / (time.monotonic() - began)
        middle, late = took[len(took) // 2], took[int(len(took) * 0.99)]
        print(f"{len(took)} replies, s: p50 {middle:.3f}, p99 {late:.3f}; {cores:.2f} cores", end="")
        print(f", {resident_mib(pid):.0f} MiB")


if __name__ == "__main__":
    main()
