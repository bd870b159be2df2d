"""Well-formed bodies that ask for an unreasonable amount of work, or are of the greatest size in one respect.

What is costly because of a constraint on the answer is in `tests.wire.hostile_constraints`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workshop.attack.mutations import nested
from workshop.attack.setups import GENERATION, POOLING, SCALE_OUT, SCORING

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "m"
WORDS = "the quick brown fox jumps over a lazy dog "
IDS = [number % 1000 + 1000 for number in range(39_000)]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
PICTURE = {"type": "image_url", "image_url": {"url": "a"}}
TOOL_CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}
HI = {"role": "user", "content": "hi"}


@dataclass(frozen=True, slots=True)
class Costly:
    """One request; `body` makes what is sent as JSON, or its bytes. `needs` names the routes that it takes."""

    name: str
    path: str
    body: Callable[[], Any]
    needs: str = GENERATION

    def data(self) -> bytes:
        """Make the bytes of the body."""
        body = self.body()
        return body if isinstance(body, bytes) else json.dumps(body).encode()


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [HI], "max_tokens": 16, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hi", "max_tokens": 16, **fields}


def turns(count: int, **fields: Any) -> dict[str, Any]:
    found = [{"role": "assistant" if number % 2 else "user", "content": "hi"} for number in range(count)]
    return {"model": MODEL, "messages": found, "max_tokens": 4, **fields}


def said(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": role, "content": content, **fields}])


def text(prompt: bytes) -> bytes:
    return b'{"model":"m","prompt":"' + prompt + b'"}'


def values(value: bytes, count: int) -> bytes:
    return b'{"model":"m","prompt":"hi","x":[' + value * count + b"1]}"


def tool(number: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"f{number}", "description": "d", "parameters": parameters}}


SHORT = ["a"] * 1_000_000


def inputs(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": [f"text {number}" for number in range(20_000)], **fields}


LONG = {"max_tokens": 30_000, "ignore_eos": True}
COSTLY: tuple[Costly, ...] = (
    Costly("n", COMPLETIONS, lambda: completion(n=16384)),
    Costly("n chat stream", CHAT, lambda: chat(n=16384, max_tokens=4, stream=True)),
    Costly("n long", COMPLETIONS, lambda: completion(n=16384, **LONG)),
    Costly("n long stream", COMPLETIONS, lambda: completion(n=16384, **LONG, stream=True)),
    Costly("n logprobs", CHAT, lambda: chat(**LONG | {"max_tokens": 64}, n=2048, logprobs=True, top_logprobs=20)),
    Costly("n of 10**9", COMPLETIONS, lambda: completion(n=10**9)),
    Costly("beams", COMPLETIONS, lambda: completion(use_beam_search=True, n=16384, max_tokens=256)),
    Costly("turns", CHAT, lambda: turns(400_000)),
    Costly("turns tokenize", "/tokenize", lambda: turns(400_000)),
    Costly("turns count", "/v1/messages/count_tokens", lambda: turns(400_000)),
    Costly("turns message", "/v1/messages", lambda: turns(100_000)),
    Costly("bad turns", CHAT, lambda: chat(messages=["hi"] * 300_000)),
    Costly("pictures", CHAT, lambda: said([PICTURE] * 300_000)),
    Costly("content parts", CHAT, lambda: said([{"type": "text", "text": "a"}] * 100_000)),
    Costly("tool calls", CHAT, lambda: said(None, "assistant", tool_calls=[TOOL_CALL] * 100_000)),
    Costly("tools", CHAT, lambda: chat(tools=[tool(number) for number in range(50_000)])),
    Costly("prompt logprobs", COMPLETIONS, lambda: completion(prompt=IDS, prompt_logprobs=20, max_tokens=1)),
    Costly("prompt logprobs n", COMPLETIONS, lambda: completion(prompt=IDS, prompt_logprobs=20, max_tokens=1, n=64)),
    Costly("echo stream", COMPLETIONS, lambda: completion(prompt=IDS, echo=True, logprobs=20, stream=True)),
    Costly("bad words", COMPLETIONS, lambda: completion(bad_words=[f"w{number}" for number in range(300_000)])),
    Costly("stop strings", COMPLETIONS, lambda: completion(stop=[f"s{n}" for n in range(300_000)], max_tokens=4000)),
    Costly("logit bias", COMPLETIONS, lambda: completion(logit_bias={str(each): 1.0 for each in range(151_000)})),
    Costly("ids", COMPLETIONS, lambda: completion(prompt=list(range(1_000_000)))),
    Costly("long prompt", COMPLETIONS, lambda: completion(prompt=WORDS * 3800)),
    Costly("long unknown words", COMPLETIONS, lambda: text("".join(chr(0x4E00 + n % 20000) for n in IDS).encode())),
    Costly("prompts ids", COMPLETIONS, lambda: completion(prompt=[[each % 1000 + 1] for each in range(300_000)])),
    Costly("words", COMPLETIONS, lambda: text(b"word " * 800_000)),
    Costly("no spaces", COMPLETIONS, lambda: text(b"a" * 2_000_000)),
    Costly("batch chat", "/v1/chat/completions/batch", lambda: turns(2) | {"messages": [[HI]] * 20_000}),
    Costly("tokenize", "/tokenize", lambda: {"model": MODEL, "prompt": WORDS * 700_000, "return_token_strs": True}),
    Costly("detokenize", "/detokenize", lambda: {"model": MODEL, "tokens": list(range(1_000_000))}),
    Costly("responses items", "/v1/responses", lambda: {"model": MODEL, "input": [HI] * 100_000}),
    Costly("unknown keys", COMPLETIONS, lambda: completion(extra={f"k{each}": each for each in range(300_000)})),
    Costly("wrong fields", COMPLETIONS, lambda: completion(prompt=[{"a": 1}] * 300_000)),
    Costly("json values", COMPLETIONS, lambda: values(b"1,", 10_000_000)),
    Costly("json lists", COMPLETIONS, lambda: values(b"[],", 8_000_000)),
    Costly("json text", COMPLETIONS, lambda: text(b"x" * 30_000_000)),
    Costly("big body", COMPLETIONS, lambda: text(b"x" * 250_000_000)),
    Costly("template loop", CHAT, lambda: chat(chat_template=LOOPS)),
    Costly("template text", CHAT, lambda: chat(chat_template="{{ 'a' * 2000000000 }}")),
    Costly("template doubling", CHAT, lambda: chat(chat_template=DOUBLING)),
    Costly("template arguments", CHAT, lambda: chat(chat_template_kwargs={f"k{n}": nested(50) for n in range(5000)})),
    Costly("generate", "/inference/v1/generate", lambda: {
        "model": MODEL, "token_ids": [7] * 1_000_000, "sampling_params": {"max_tokens": 4}}, SCALE_OUT),
    Costly("derender", "/v1/completions/derender", lambda: {
        "model": MODEL, "prompt_tokens": [1], "generate_responses": [{"request_id": "g", "choices": [
            {"index": 0, "finish_reason": "stop", "token_ids": [7] * 1_000_000}]}]}, SCALE_OUT),
    Costly("embeddings", "/v1/embeddings", inputs, POOLING),
    Costly("pooling bytes", "/pooling", lambda: inputs(encoding_format="bytes_only"), POOLING),
    Costly("rerank", "/rerank", lambda: {"query": "what", "documents": inputs()["input"]}, SCORING),
    Costly("million embeddings", "/v1/embeddings", lambda: {"input": SHORT}, POOLING),
    Costly("million documents", "/rerank", lambda: {"query": "what", "documents": SHORT}, SCORING),
    Costly("million scores", "/score", lambda: {"text_1": "what", "text_2": SHORT}, SCORING),
    Costly("score", "/score", lambda: {"text_1": "what", "text_2": inputs()["input"]}, SCORING),
)  # fmt: skip
