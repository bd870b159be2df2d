"""Workloads for a tap before a genuine engine of vLLM, with clients that hang up at random moments.

    python -m workshop.vllm_oracle.tapped_steps --url http://127.0.0.1:18800 --workloads 10 --seed 0
    blis tap-check real.link.jsonl

The frontend at `--url` has an engine with `--enable-logging-iteration-details --no-async-scheduling` behind `blis tap`.
A workload has prompts with common beginnings, prompts that take several steps, several choices, and clients that leave:
alone or many at once, before the first token, in the queue, or while they get tokens. `blis tap-check` then names the
first step of the recording that our scheduler composes otherwise.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from random import Random
from typing import Any

import aiohttp

from workshop.ending import check_reachable, run_command

VOCABULARY = range(1000, 29_000)
LONGEST_PROMPT, LONGEST_REPLY = 1200, 120


def main() -> int:
    """Ask, and print how many clients have left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the frontend")
    parser.add_argument("--workloads", type=int, default=10, help="number of workloads, one after the other")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first workload")
    given = parser.parse_args()
    check_reachable(given.url)
    seen = asyncio.run(_asked(given.url, range(given.seed, given.seed + given.workloads)))
    sys.stdout.write(json.dumps({"workloads": given.workloads, **seen}) + "\n")
    return 0


async def _asked(url: str, seeds: range) -> Counter[str]:
    """Send one workload after the other, and return what became of the requests."""
    seen: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        for seed in seeds:
            random = Random(seed)
            mean_gap_s = random.choice((0.002, 0.01, 0.04))
            beginnings = [random.choices(VOCABULARY, k=random.randint(1, LONGEST_PROMPT // 2)) for _ in range(4)]
            leaving = random.choice((0.2, 0.5, 0.8))
            together_s = [random.uniform(0.05, 1.0) for _ in range(2)]
            replies, at_s = [], 0.0
            for _ in range(random.randint(20, 60)):
                at_s += random.expovariate(1 / mean_gap_s)
                leaves_s = None
                if random.random() < leaving:
                    leaves_s = random.choice((random.expovariate(1 / 0.03), random.uniform(0, 0.6)))
                    if random.random() < 0.3:
                        leaves_s = max(0.0, random.choice(together_s) - at_s)
                replies.append(_reply(session, url, at_s, leaves_s, _body(random, beginnings)))
            seen.update(await asyncio.gather(*replies))
            await asyncio.sleep(0.2)
    return seen


def _body(random: Random, beginnings: list[list[int]]) -> dict[str, Any]:
    end = random.choices(VOCABULARY, k=random.choice((1, 7, 16, 40, 300)))
    prompt = (random.choice(beginnings) + end)[:LONGEST_PROMPT] if random.random() < 0.6 else end
    body = {"model": "m", "prompt": prompt, "max_tokens": random.randint(1, LONGEST_REPLY), "ignore_eos": True}
    if random.random() < 0.1:
        body |= {"n": random.randint(2, 5), "seed": 1}
    return body | {"stream": random.random() < 0.5}


async def _reply(
    session: aiohttp.ClientSession, url: str, at_s: float, leaves_s: float | None, body: dict[str, Any]
) -> str:
    """Ask at an instant, and leave so many seconds later if the reply has not ended."""
    await asyncio.sleep(at_s)
    try:
        async with asyncio.timeout(leaves_s), session.post(f"{url}/v1/completions", json=body) as reply:
            await reply.read()
            return f"status {reply.status}"
    except TimeoutError:
        return "left"


if __name__ == "__main__":
    run_command(main)
