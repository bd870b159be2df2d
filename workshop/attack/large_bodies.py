"""Requests of the greatest size in one respect each."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

EMBEDDING = ("--runner", "pooling", "--convert", "embed")
SCORING = ("--runner", "pooling", "--convert", "classify")
TEMPLATES = ("--trust-request-chat-template",)


@dataclass(frozen=True, slots=True)
class Attack:
    """One request, and what the server that gets it is started with."""

    path: str
    body: bytes
    flags: tuple[str, ...] = ()
    streams: bool = True
    """Whether the server generates, so that other streams can be watched."""


def completion(flags: tuple[str, ...] = (), **fields: Any) -> Attack:
    return Attack("/v1/completions", json.dumps({"prompt": "hi", **fields}).encode(), flags)


def chat(flags: tuple[str, ...] = (), path: str = "/v1/chat/completions", **fields: Any) -> Attack:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return Attack(path, json.dumps(body).encode(), flags)


def post(path: str, body: Any, flags: tuple[str, ...] = (), streams: bool = True) -> Attack:
    return Attack(path, body if isinstance(body, bytes) else json.dumps(body).encode(), flags, streams)


def _turns(count: int, path: str = "/v1/chat/completions") -> Attack:
    turns = [{"role": "user" if number % 2 == 0 else "assistant", "content": "hi"} for number in range(count)]
    return post(path, {"messages": turns, "max_tokens": 4})


def _tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"f{number}", "description": "d", "parameters": schema}}


WORDS = "the quick brown fox jumps over a lazy dog "
IDS = [number % 1000 + 1000 for number in range(39_000)]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

CASES: Mapping[str, Callable[[], Attack]] = {
    "n": lambda: completion(n=16384, max_tokens=16),
    "n stream": lambda: completion(n=16384, max_tokens=16, stream=True),
    "n chat stream": lambda: chat(n=16384, max_tokens=4, stream=True),
    "n long": lambda: completion(n=16384, max_tokens=30000, ignore_eos=True),
    "n long stream": lambda: completion(n=16384, max_tokens=30000, ignore_eos=True, stream=True),
    "n logprobs": lambda: chat(n=2048, max_tokens=64, ignore_eos=True, logprobs=True, top_logprobs=20),
    "one long": lambda: completion(max_tokens=30000, ignore_eos=True),
    "turns": lambda: _turns(200_000),
    "turns tokenize": lambda: _turns(200_000, "/tokenize"),
    "turns count": lambda: _turns(200_000, "/v1/messages/count_tokens"),
    "bad turns": lambda: post("/v1/chat/completions", {"messages": ["hi"] * 300_000}),
    "prompt logprobs": lambda: completion(prompt=IDS, prompt_logprobs=20, max_tokens=1),
    "prompt logprobs n": lambda: completion(prompt=IDS, prompt_logprobs=20, max_tokens=1, n=64),
    "prompt logprobs chat": lambda: chat(
        messages=[{"role": "user", "content": WORDS * 3800}], prompt_logprobs=20, max_tokens=1
    ),
    "echo": lambda: completion(prompt=IDS, echo=True, logprobs=20, max_tokens=1),
    "echo stream": lambda: completion(prompt=IDS, echo=True, logprobs=20, max_tokens=1, stream=True),
    "echo n": lambda: completion(prompt=IDS, echo=True, logprobs=20, max_tokens=1, n=64),
    "logprobs long": lambda: completion(max_tokens=30000, ignore_eos=True, logprobs=20),
    "bad words": lambda: completion(bad_words=[f"w{number}" for number in range(300_000)]),
    "stop strings": lambda: completion(stop=[f"s{number}" for number in range(300_000)], max_tokens=4000),
    "stop ids": lambda: completion(stop_token_ids=list(range(300_000))),
    "logit bias": lambda: completion(logit_bias={str(number): 1.0 for number in range(151_000)}),
    "allowed ids": lambda: completion(allowed_token_ids=list(range(300_000))),
    "ids": lambda: completion(prompt=list(range(1_000_000))),
    "long prompt": lambda: completion(prompt=WORDS * 3800),
    "long unknown words": lambda: completion(prompt="".join(chr(0x4E00 + n % 20000) for n in range(39_000))),
    "long prompt n": lambda: completion(prompt=IDS, n=512, max_tokens=1),
    "prompts": lambda: completion(prompt=[f"word {number}" for number in range(100_000)], max_tokens=4),
    "prompts ids": lambda: completion(prompt=[[number % 1000 + 1] for number in range(300_000)], max_tokens=1),
    "batch chat": lambda: post(
        "/v1/chat/completions/batch",
        {"messages": [[{"role": "user", "content": f"hi {number}"}] for number in range(20_000)], "max_tokens": 2},
    ),
    "tokenize": lambda: post("/tokenize", {"prompt": WORDS * 700_000, "return_token_strs": True}),
    "detokenize": lambda: post("/detokenize", {"tokens": list(range(1_000_000))}),
    "beams": lambda: completion(use_beam_search=True, n=16384, max_tokens=256),
    "responses items": lambda: post(
        "/v1/responses", {"input": [{"role": "user", "content": "hi"} for _ in range(100_000)]}
    ),
    "message blocks": lambda: post(
        "/v1/messages",
        {
            "max_tokens": 4,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"} for _ in range(100_000)]}],
        },
    ),
    "pictures": lambda: chat(
        ("--tokens-per-medium", "256"),
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}} for _ in range(300_000)]}
        ],
    ),
    "tools": lambda: chat(tools=[_tool(number) for number in range(50_000)]),
    "json values": lambda: post("/v1/completions", b'{"prompt":"hi","x":[' + b"1," * 10_000_000 + b"1]}"),
    "json lists": lambda: post("/v1/completions", b'{"prompt":"hi","x":[' + b"[]," * 8_000_000 + b"1]}"),
    "json text": lambda: post("/v1/completions", b'{"prompt":"' + b"x" * 30_000_000 + b'"}'),
    "json emoji": lambda: post("/v1/completions", b'{"prompt":"\xf0\x9f\x98\x80' + b"x" * 30_000_000 + b'"}'),
    "big body": lambda: post("/v1/completions", b'{"prompt":"' + b"x" * 250_000_000 + b'"}'),
    "template loop": lambda: chat(TEMPLATES, chat_template=LOOPS),
    "template power": lambda: chat(TEMPLATES, chat_template="{{ 9 ** 9999999 }}"),
    "template text": lambda: chat(TEMPLATES, chat_template="{{ 'a' * 2000000000 }}"),
    "template filter": lambda: chat(TEMPLATES, chat_template="{{ 'a'|center(2000000000) }}"),
    "template doubling": lambda: chat(
        TEMPLATES,
        chat_template="{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}{{ ns.x }}",
    ),
    "embeddings": lambda: post(
        "/v1/embeddings", {"input": [f"text {number}" for number in range(20_000)]}, EMBEDDING, streams=False
    ),
    "embeddings base64": lambda: post(
        "/v1/embeddings",
        {"input": [f"text {number}" for number in range(20_000)], "encoding_format": "base64"},
        EMBEDDING,
        streams=False,
    ),
    "pooling bytes": lambda: post(
        "/pooling",
        {"input": [f"text {number}" for number in range(20_000)], "encoding_format": "bytes_only"},
        EMBEDDING,
        streams=False,
    ),
    "rerank": lambda: post(
        "/rerank",
        {"query": "what", "documents": [f"text {number}" for number in range(20_000)]},
        SCORING,
        streams=False,
    ),
    "score": lambda: post(
        "/score",
        {"text_1": "what", "text_2": [f"text {number}" for number in range(20_000)]},
        SCORING,
        streams=False,
    ),
}
