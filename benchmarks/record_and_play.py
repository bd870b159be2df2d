"""Mixed clients through the recording proxy; the recording is judged, and played back at three times the load.

python benchmarks/record_and_play.py --requests 2000 --rate 50
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import orjson

BLIS = [sys.executable, "-m", "blis_sim.cli"]
MODEL = "qwen/qwen3-14b"
WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "light", "paper", "green", "cloud", "seven"]


def text(chance: random.Random, num_words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(num_words))


def conversation(number: int) -> tuple[str, dict[str, Any], int]:
    """Path, body and number of rounds of one client: OpenAI's chat and completions, Responses, Anthropic, an agent."""
    chance = random.Random(number)
    words = text(chance, chance.randint(20, 200))
    most = chance.randint(8, 64)
    user = [{"role": "user", "content": f"{number}: {words}"}]
    kind = number % 5
    if kind == 0:
        body = {"messages": user, "max_tokens": most, "stream": True, "stream_options": {"include_usage": True}}
        return "/v1/chat/completions", body, 1
    if kind == 1:
        return "/v1/completions", {"prompt": f"{number}: {words}", "max_tokens": most, "stream": True}, 1
    if kind == 2:
        return "/v1/messages", {"model": MODEL, "messages": user, "max_tokens": most, "stream": True}, 1
    if kind == 3:
        return "/v1/responses", {"input": user, "max_output_tokens": most, "stream": True}, 1
    system = [{"role": "system", "content": "You are an agent. " + text(random.Random(0), 300)}]
    body = {"messages": [*system, *user], "max_tokens": most, "stream": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", body, 4


def said(payload: bytes) -> str:
    """The words of one event."""
    event = orjson.loads(payload)
    if event.get("choices"):
        choice = event["choices"][0]
        return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    return str((event.get("delta") or {}).get("text") or "") if event.get("type") == "content_block_delta" else ""


async def talk(session: aiohttp.ClientSession, url: str, number: int, replies: dict[str, str]) -> None:
    path, body, rounds = conversation(number)
    for _ in range(rounds):
        words = ""
        async with session.post(url + path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    words += said(line[5:].strip())
        replies[json.dumps([path, body.get("messages", body.get("prompt", body.get("input")))])] = words
        if rounds > 1:
            turns = [{"role": "assistant", "content": words}, {"role": "user", "content": "go on"}]
            body = {**body, "messages": [*body["messages"], *turns]}
            await asyncio.sleep(0.05)


async def load(url: str, num_requests: int, rate: float) -> dict[str, str]:
    replies: dict[str, str] = {}
    num_conversations = int(num_requests / 1.6)  # every fifth has four rounds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.monotonic()
        tasks = []
        for number in range(num_conversations):
            await asyncio.sleep(max(0.0, start + number * 1.6 / rate - time.monotonic()))
            tasks.append(asyncio.create_task(talk(session, url, number, replies)))
        await asyncio.gather(*tasks)
    return replies


def started(arguments: list[str], folder: str) -> tuple["subprocess.Popen[str]", str]:
    process = subprocess.Popen(
        [*BLIS, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "http://" not in (line := process.stderr.readline()) or "note" in line:
        assert line, "the process has ended"
    port = line.split("http://")[1].split(" ")[0].rsplit(":", 1)[1]
    return process, f"http://127.0.0.1:{port}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=50.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, url = started(["serve", MODEL, "--port", "0"], folder)
        flags = ["--record-itl", "--record-content", "-o", "day"]
        proxy, through = started(["observe", "--proxy", "0", "--url", url, *flags], folder)
        first = asyncio.run(load(through, given.requests, given.rate))
        proxy.terminate()
        print(proxy.communicate()[0].replace("\n", " "))
        server.terminate()
        server.wait()
        replay = ["replay", "day.yaml", "--model", MODEL, "--results-path", "sim.json"]
        subprocess.run([*BLIS, *replay], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        judge = ["calibrate", "day.yaml", "--sim-results", "sim.json", "--itl-data", "day.itl.csv"]
        print(subprocess.run([*BLIS, *judge], cwd=folder, check=True, capture_output=True, text=True).stdout)
        content = Path(folder) / "day.content.jsonl"
        player, url = started(
            ["serve", MODEL, "--port", "0", "--playback", str(content), "--playback-miss", "error"], folder
        )
        second = asyncio.run(load(url, given.requests, 3 * given.rate))
        player.terminate()
        player.wait()
    same = sum(second.get(asked) == words for asked, words in first.items())
    print(f"played back: {same} of {len(first)} replies say the same")


if __name__ == "__main__":
    main()
