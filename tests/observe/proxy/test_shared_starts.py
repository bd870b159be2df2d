"""Prompts that begin alike are recorded so that a replay finds what a server found, without any of their words."""

import asyncio
import json
import random
import re
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from observe.proxy.exchanges import RequestMetadata, SharedStarts, prompt_starts, request_metadata_of
from observe.proxy.recording_process import Recording
from observe.proxy.tap import EventKind
from tests.observe.proxy.test_recording import Wire, job_in, rows_in, user
from traces import TraceRow, read_rows
from workshop.day.processes import judged, running

SHARED = " ".join(f"shared{number}" for number in range(400))


def recorded(folder: Path, *prompts: dict[str, Any], prompt_tokens: int = 1_000) -> list[TraceRow]:
    recording = Recording(job_in(folder))
    wire = Wire(recording)
    for place, members in enumerate(prompts):
        connection = wire.connect()
        wire.ask(connection, 20 * place, **members)
        wire.answer(connection, 20 * place + 10, prompt_tokens=prompt_tokens)
    recording.close()
    return rows_in(folder)


@pytest.mark.parametrize(
    "members_of",
    [
        lambda text: {"messages": user(text)},
        lambda text: {"messages": [{"role": "system", "content": "be brief"}, *user(text)]},
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
    ],
    ids=["a question", "behind instructions", "in parts"],
)
def test_a_prompt_that_begins_as_an_earlier_one_names_it_and_how_much(
    members_of: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    first, second, third = recorded(
        tmp_path,
        members_of(f"{SHARED} why? {'a' * 400}"),
        members_of(f"{SHARED} how? {'b' * 400}"),
        members_of(f"other words {'c' * 4_000}"),
    )
    share = len(SHARED) / (len(SHARED) + 406)
    assert (first.context_of, first.context_tokens) == ("", 0)
    assert second.context_of == "0"
    assert second.context_tokens == pytest.approx(1_000 * share, rel=0.04)
    assert third.context_of == ""
    assert SHARED[:20] not in (tmp_path / "r.csv").read_text()


def facts_of(**members: Any) -> RequestMetadata:
    return request_metadata_of(json.dumps({"model": "m", **members}).encode(), b"client")


def shared_bytes(one: RequestMetadata, other: RequestMetadata) -> int:
    starts = SharedStarts()
    starts.add(one.starts, 0)
    return starts.longest(other.starts)[0]


def test_bare_prompts_as_text_and_as_tokens_are_compared() -> None:
    assert shared_bytes(facts_of(prompt=SHARED + "a"), facts_of(prompt=SHARED + "b")) == pytest.approx(
        len(SHARED), rel=0.04
    )
    ids = list(range(1_000))
    assert shared_bytes(facts_of(prompt=[*ids, 1]), facts_of(prompt=[*ids, 2])) == pytest.approx(4_000, rel=0.02)
    assert shared_bytes(facts_of(prompt=SHARED), facts_of(prompt=SHARED)) == len(SHARED)


@pytest.mark.parametrize("members", [{"model": "other"}, {"cache_salt": "mine"}])
def test_what_no_cache_shares_is_not_shared(members: dict[str, str]) -> None:
    assert shared_bytes(facts_of(prompt=SHARED), facts_of(prompt=SHARED, **members)) == 0


def test_starts_of_a_long_prompt_are_few() -> None:
    starts = prompt_starts(b"", bytes(1 << 20))
    ends = [end for end, _ in starts.ends()]
    assert len(starts.digests) < 40_000
    assert ends[-1] == 1 << 20
    assert all(after <= max(before + 64, 1.002 * before) for before, after in pairwise(ends))


def test_a_request_that_failed_is_not_named(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    for place in range(2):
        connection = wire.connect()
        wire.ask(connection, 10 * place, messages=user(SHARED))
        wire.happens(EventKind.REPLY, connection, 10 * place + 5, b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    recording.close()
    assert [row.context_of for row in rows_in(tmp_path)] == ["", ""]


MODEL = "qwen/qwen3-14b"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "flags", "within"),
    [("completions", (), 0.02), ("chat", (), 0.02), ("completions", ("--enable-prompt-tokens-details",), 0.005)],
)
def test_prompts_with_a_shared_start_replay_with_the_hits_of_the_server(
    kind: str, flags: tuple[str, ...], within: float, tmp_path: Path
) -> None:
    words = [" ".join(f"w{group}x{number}" for number in range(300)) for group in range(3)]
    draw = random.Random(5)

    async def load(url: str) -> None:
        async with aiohttp.ClientSession() as session:

            async def one(number: int) -> None:
                await asyncio.sleep(number / 6)
                own = " ".join(f"v{draw.randrange(9)}x{draw.randrange(300)}" for _ in range(40))
                text = f"{words[number % 3]} {own}"
                body: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "stream": True}
                body |= {"stream_options": {"include_usage": True}}
                body |= {"prompt": text} if kind == "completions" else {"messages": user(text)}
                path = "/v1/completions" if kind == "completions" else "/v1/chat/completions"
                async with session.post(url + path, json=body) as reply:
                    assert reply.status == 200
                    await reply.read()

            await asyncio.gather(*map(one, range(30)))

    with running(tmp_path, "serve", MODEL, "--port", "0", *flags) as (_, url):
        proxy = ("--proxy", "0", "--proxy-host", "127.0.0.1", "--url", url, "--record-itl", "--output", "shared")
        with running(tmp_path, "observe", *proxy) as (_, proxy_url):
            asyncio.run(load(proxy_url))
        with urllib.request.urlopen(f"{url}/metrics") as page:
            metrics = page.read().decode()
    hits, queries = (
        float(re.findall(rf"^vllm:prefix_cache_{name}_total.* (\S+)$", metrics, re.MULTILINE)[0])
        for name in ("hits", "queries")
    )
    assert sum(row.context_of != "" for row in read_rows(tmp_path / "shared.csv")) == 27
    report = judged(tmp_path, "shared", "--model", MODEL, "--metrics-path", "metrics.json")
    replayed = json.loads((tmp_path / "metrics.json").read_text())
    assert hits > 0.6 * queries
    assert replayed["cache_hit_rate"] == pytest.approx(hits / queries, abs=within)
    # A busy machine delays what is recorded, so that only the correlation with what was found shows.
    assert report["metrics"]["ttft"]["request_level"]["pearson_r"] > 0.5
