"""Does the cache canary keep silent for a day, and does it find broken hashing within a minute?

    python -m workshop.cache_day [--minutes 8] [--rate 12] [--seed 0]

A day of mixed traffic passes `observe --proxy --cache-canary` in a few minutes: the server's time passes faster. Chats,
agents, documents with questions and single prompts come in waves, to a KV cache that is full most of the time. Then
comes a server in normal time whose hashes have lost the beginning of a third of the prompts. Exit code 1 for an alarm
about the first server, and for none within a minute about the second.
"""

import argparse
import asyncio
import itertools
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from workshop.day.clients import MODEL, WORDS
from workshop.day.processes import running, stopped
from workshop.ending import run_command

DAY_S = 86_400.0
FOUND_WITHIN_S = 60.0
BLOCKS = 2500
"""A tenth of what the day asks for: prompts leave the cache all day."""
SERVE = (
    *("serve", MODEL, "--hardware", "H100", "--port", "0", "--enable-prompt-tokens-details"),
    *("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "8192"),
)
BROKEN = """
import sys
from zlib import crc32
from mockserve.kv_events import naming
whole = naming.FastNaming.__call__
def broken(self, request_id, token_ids, scope):
    salt = request_id if crc32(request_id.encode()) % 3 == 0 else scope.cache_salt
    return whole(self, request_id, token_ids, naming.Scope(salt, scope.lora))
naming.FastNaming.__call__ = broken
from blis_sim.cli.main import main
sys.exit(main())
"""
"""A server that gives every third prompt hashes of its own."""


def main() -> int:
    """Run both servers, and print what the canary said of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the day takes")
    parser.add_argument(
        "--rate", type=float, default=12.0, help="conversations started per second of these, on average"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alarm = _whole_day(Path(folder), given)
        found_s = _broken(Path(folder), given)
    return int(alarm or found_s is None or found_s > FOUND_WITHIN_S)


def _whole_day(folder: Path, given: argparse.Namespace) -> bool:
    """Send a day to a healthy server. Returns whether there was an alarm."""
    seconds = given.minutes * 60
    speed = DAY_S / seconds
    with (
        running(folder, *SERVE, "--speed", f"{speed:g}") as (_, url),
        running(folder, "observe", "--proxy", "0", "--url", url, "--cache-canary", "-o", "day") as (proxy, through),
    ):
        num_sent = asyncio.run(_traffic(through, given.seed, seconds, given.rate))
        summary = stopped(proxy)
    (cache,) = summary["cache"]
    print(
        f"a day in {seconds:.0f} s: {num_sent} requests, {cache['requests']} judged, "
        f"{cache['must_hit_tokens']} tokens had to be found and {cache['reported_hit_tokens']} were: "
        + (f"FALSE ALARM, {cache['first_miss']}" if cache["missed"] else "no alarm"),
        flush=True,
    )
    return bool(cache["missed"])


def _broken(folder: Path, given: argparse.Namespace) -> float | None:
    """Send the same traffic to a server with broken hashing. Returns the seconds until the alarm, None without one."""
    found: list[float] = []
    broken = (sys.executable, "-c", BROKEN)
    with (
        running(folder, *SERVE, program=broken) as (_, url),
        running(folder, "observe", "--proxy", "0", "--url", url, "--cache-canary", "-o", "broken") as (proxy, through),
    ):
        began = time.monotonic()

        def listen() -> None:
            assert proxy.stderr is not None
            for line in proxy.stderr:
                if "CACHE ALARM" in line and not found:
                    found.append(time.monotonic() - began)
                    print(f"broken hashing after {found[0]:.1f} s: {line.strip()}", flush=True)

        threading.Thread(target=listen, daemon=True).start()
        asyncio.run(_traffic(through, given.seed, FOUND_WITHIN_S, 2.0, found))
    if not found:
        print(f"broken hashing was not found within {FOUND_WITHIN_S:.0f} s")
    return found[0] if found else None


async def _traffic(url: str, seed: int, seconds: float, rate: float, ends_with: list[float] | None = None) -> int:
    """Send conversations for so long, in the waves of a day, or until `ends_with` has an item. Returns the requests."""
    chance, began, num_sent = random.Random(seed), time.monotonic(), itertools.count()
    tasks: list[asyncio.Task[None]] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200, force_close=True)) as session:
        due = 0.0
        for number in itertools.count():
            due += chance.expovariate(rate * (1 - 0.8 * math.cos(2 * math.pi * due / seconds)))
            if due > seconds or ends_with:
                break
            await asyncio.sleep(max(0.0, began + due - time.monotonic()))
            requests = _conversation(random.Random(seed * 1_000_003 + number), number)
            tasks.append(asyncio.create_task(_sent(session, url, requests, num_sent)))
        if ends_with is None:
            await asyncio.gather(*tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(num_sent)


async def _sent(
    session: aiohttp.ClientSession, url: str, requests: Iterator[tuple[str, dict[str, Any]]], num_sent: Iterator[int]
) -> None:
    for path, body in requests:
        next(num_sent)
        async with session.post(url + path, json={"model": MODEL, **body}) as reply:
            said = await reply.json()
            if reply.status != 200:
                raise RuntimeError(f"status {reply.status}: {said}")


def _conversation(chance: random.Random, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the requests of a client, each with the whole prompt: equal words are equal prefixes."""

    def words(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    kind = chance.choices(("chat", "agent", "document", "prompt"), (5, 2, 3, 2))[0]
    most = {"max_tokens": chance.randint(4, 24)}
    if kind == "prompt":
        yield "/v1/completions", {"prompt": f"{number} {words(chance.randint(20, 400))}", **most}
        return
    tenant = int(chance.paretovariate(1.0)) % 40 if kind != "document" else 100 + chance.randrange(200)
    beginning = " ".join(random.Random(tenant).choices(WORDS, k=120 + 13 * (tenant % 50)))
    messages = [{"role": "system", "content": f"{tenant}: {beginning}"}]
    rounds = {"chat": chance.randint(1, 5), "agent": chance.randint(3, 8), "document": 1}[kind]
    salted = {"cache_salt": f"tenant-{tenant}"} if tenant % 7 == 3 else {}
    for place in range(rounds):
        messages = [*messages, {"role": "user", "content": f"{number}.{place} {words(chance.randint(5, 120))}"}]
        yield "/v1/chat/completions", {"messages": messages, **most, **salted}
        messages = [*messages, {"role": "assistant", "content": words(most["max_tokens"])}]


if __name__ == "__main__":
    run_command(main)
