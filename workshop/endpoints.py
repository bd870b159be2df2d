"""Memory and processor time of hundreds of endpoints in one process, idle and at a rate of requests each.

python -m workshop.endpoints --count 500 --rate 1 --seconds 20
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

FIRST_PORT = 21_000


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def processor_s(pid: int) -> float:
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


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
    command = [sys.executable, "-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", "--host", "127.0.0.1"]
    command += ["--ports", f"{FIRST_PORT}-{FIRST_PORT + given.count - 1}"]
    began = time.monotonic()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        print(server.stderr.readline().strip(), f"after {time.monotonic() - began:.1f} s")
        print(f"idle: {resident_mb(server.pid):.0f} MB")
        before = processor_s(server.pid)
        time.sleep(3)
        print(f"idle: {(processor_s(server.pid) - before) / 3:.3f} cores")
        before, began = processor_s(server.pid), time.monotonic()
        took = sorted(
            asyncio.run(ask_all(list(range(FIRST_PORT, FIRST_PORT + given.count)), given.rate, given.seconds))
        )
        cores = (processor_s(server.pid) - before) / (time.monotonic() - began)
        middle, late = took[len(took) // 2], took[int(len(took) * 0.99)]
        print(f"{len(took)} replies, s: p50 {middle:.3f}, p99 {late:.3f}; {cores:.2f} cores", end="")
        print(f", {resident_mb(server.pid):.0f} MB")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
