"""Clients that send what `blis observe` does not: through its proxy, by due times."""

import base64
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

Body = Callable[[int, random.Random], tuple[str, Mapping[str, Any]]]
"""From the number of a request and a source of chance to its path and its body without a model."""

_WORDS = [
    "river",
    "stone",
    "amber",
    "cloud",
    "ladder",
    "window",
    "copper",
    "forest",
    "lantern",
    "marble",
    "engine",
    "harbour",
]
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "years": {"type": "integer"}, "fits": {"type": "boolean"}},
    "required": ["name", "years", "fits"],
}


def _chat(number: int, chance: random.Random, **fields: Any) -> tuple[str, Mapping[str, Any]]:
    text = f"{number} " + " ".join(chance.choice(_WORDS) for _ in range(chance.randint(80, 400)))
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": chance.randint(20, 60),
        "min_tokens": 20,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def _structured(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}}
    fields = {"response_format": schema} if number % 2 else {}
    return _chat(number, chance, ignore_eos=not fields, min_tokens=0 if fields else 20, max_tokens=60, **fields)


def _embeddings(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    if number % 3:
        return _chat(number, chance)
    texts = [f"{number} " + " ".join(chance.choices(_WORDS, k=300 // (place + 1))) for place in range(number % 6 + 1)]
    return "/v1/embeddings", {"input": texts if number % 2 else texts[0]}


def _images(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    path, body = _chat(number, chance)
    picture = base64.b64encode(_PNG + number.to_bytes(4, "big")).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    text = body["messages"][0]["content"]
    return path, {**body, "messages": [{"role": "user", "content": [{"type": "text", "text": text}, part]}]}


def _choices(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    """Several choices of a conversation, and of several prompts."""
    if number % 2:
        return _chat(number, chance, n=number % 4 + 1)
    prompts = [f"{number} {place} " + " ".join(chance.choices(_WORDS, k=200)) for place in range(number % 3 + 1)]
    return "/v1/completions", {"prompt": prompts, "n": number % 4 + 1, "max_tokens": 40, "ignore_eos": True}


def _reasoning(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    """A chat, in every third request by way of Anthropic's messages."""
    path, body = _chat(number, chance)
    if number % 3:
        return path, body
    return "/v1/messages", {name: body[name] for name in ("messages", "max_tokens", "stream")}


def _scores(number: int, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    """Texts that are compared with one other."""
    texts = [f"{number} {place} " + " ".join(chance.choices(_WORDS, k=300)) for place in range(number % 4 + 1)]
    return "/score", {"text_1": f"{number} " + " ".join(chance.choices(_WORDS, k=600)), "text_2": texts}


_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

BODIES: Mapping[str, Body] = {
    "structured": _structured,
    "embeddings": _embeddings,
    "images": _images,
    "choices": _choices,
    "reasoning": _reasoning,
    "scores": _scores,
    "hanging up": _chat,
    "sleep": _chat,
    "pause": _chat,
}


def send(url: str, server_url: str, load: str, model: str, seed: int, rate: float, count: int) -> None:
    """Send the requests of a load to `url`, and do to the server itself what the load includes."""
    chance = random.Random(seed)
    started, due = time.monotonic(), 0.0
    threads = []
    if load in ("sleep", "pause"):
        threads.append(threading.Thread(target=_interrupt, args=(server_url, load, count / rate / 3)))
        threads[0].start()
    for number in range(count):
        path, body = BODIES[load](number, chance)
        due += chance.expovariate(rate)
        time.sleep(max(0.0, started + due - time.monotonic()))
        leaves_after_s = _PATIENCE_S if load == "hanging up" and number % 3 == 0 else None
        thread = threading.Thread(target=_one, args=(url, path, {"model": model, **body}, leaves_after_s))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


_PATIENCE_S = 2.0


def _one(url: str, path: str, body: Mapping[str, Any], leaves_after_s: float | None) -> None:
    """Send one request and read its reply, or as much of it as comes until the client leaves."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        if leaves_after_s is None:
            connection.getresponse().read()
        else:
            time.sleep(leaves_after_s)
    finally:
        connection.close()


def _interrupt(url: str, load: str, after_s: float) -> None:
    """Put the engine to sleep or pause it for a second."""
    begin, end = {"sleep": ("/sleep?level=1", "/wake_up"), "pause": ("/pause?mode=keep", "/resume")}[load]
    time.sleep(after_s)
    for path in (begin, end):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.request("POST", path)
        connection.getresponse().read()
        connection.close()
        time.sleep(1.0)
