"""A day of mixed clients through the recording proxy: judged, played back at a higher load, and cut by kill -9.

    python -m workshop.day --requests 2000 --rate 10

Clients of libraries that are not installed are replaced by the requests that they send.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from traces import read_rows
from workshop.day.clients import MODEL, LoadReplies, load
from workshop.day.processes import judged, running, stopped

RECORDING = ("--record-itl", "--record-content")
PLAYING = ("--playback", "day.content.jsonl", "--playback-miss", "error")
NUM_WARMING, OTHERS = 5, 6_000_000
"""Conversations of each client but the agent that are not recorded: clients and servers load parts at first requests.

They have numbers of their own, so that no later prompt is found in the cache.
"""
COUNTED_BEFORE_S = 1.0
"""Requests that ended so long before the proxy was killed must be recorded."""


def recorded(folder: Path, url: str, name: str, num_requests: int, rate: float) -> LoadReplies:
    """Send a load through a proxy of its own; its recording is `name`."""
    with running(folder, "observe", "--proxy", "0", "--url", url, *RECORDING, "-o", name) as (proxy, through):
        replies = asyncio.run(load(through, num_requests, rate))
        summary = stopped(proxy)
    assert summary["recorded"] == num_requests == len(replies.words), summary
    assert summary["by_status"] == {"ok": num_requests}, summary
    return replies


def killed(folder: Path, url: str, num_requests: int, rate: float) -> tuple[int, int]:
    """Kill a proxy in the midst of a load; how many requests had ended a second before, and how many are recorded."""

    async def load_and_kill(through: str, proxy: Any) -> tuple[LoadReplies, float]:
        loading = asyncio.create_task(load(through, num_requests, rate, ends_when_cut=True))
        await asyncio.sleep(num_requests / rate / 2)
        proxy.kill()
        at = time.time()
        return await loading, at

    with running(folder, "observe", "--proxy", "0", "--url", url, *RECORDING, "-o", "killed") as (proxy, through):
        replies, at = asyncio.run(load_and_kill(through, proxy))
    num_due = sum(ended < at - COUNTED_BEFORE_S for _, ended in replies.times_s.values())
    return num_due, sum(row.status == "ok" for row in read_rows(folder / "killed.csv"))


def show(name: str, report: dict[str, Any]) -> None:
    """Print how well a simulation predicts a recording."""
    for metric, found in report["metrics"].items():
        each, mean = found["request_level"], found["workload_level"]
        values = ", ".join(f"{key} {value:.4g}" for key, value in mean.items() if key.startswith(("real_m", "sim_m")))
        r = each["pearson_r"]
        said = f"MAPE {each['mape']:.1%}, r {'-' if r is None else f'{r:.3f}'}: {each['quality']}"
        print(f"{name}: {metric.upper():<5} {said} ({values})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second")
    parser.add_argument("--times", type=float, default=3.0, help="how many times the load the play back gets")
    parser.add_argument("--folder", type=Path, help="keep files here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        with running(folder, "serve", MODEL, "--port", "0") as (_, url):
            asyncio.run(load(url, NUM_WARMING, given.rate, first=OTHERS))
            first = recorded(folder, url, "day", given.requests, given.rate)
            num_due, num_kept = killed(folder, url, given.requests // 10, given.rate)
        print(f"kill -9: {num_due} requests had ended a second before, {num_kept} are recorded", flush=True)
        show("recording", judged(folder, "day", "--model", MODEL))
        with running(folder, "serve", MODEL, "--port", "0", *PLAYING) as (_, url):
            second = recorded(folder, url, "played", given.requests, given.times * given.rate)
        show("played back", judged(folder, "played", "--model", MODEL))
    same = sum(second.words.get(key) == words for key, words in first.words.items())
    print(f"played back: {same} of {len(first.words)} replies say the same")


if __name__ == "__main__":
    main()
