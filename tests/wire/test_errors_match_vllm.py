"""Refusals equal those of a genuine vLLM for equal requests: status, headers and body, byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.wire.captures import Capture, captures_by_name
from tests.wire.plain_http import PlainReply, call, chat, complete
from tests.wire.serving import TestServer, running_server

REFUSALS = (
    "404 model", "404 model completions", "404 model stream", "bad json", "empty body", "json array body",
    "wrong content type", "missing messages", "messages wrong type", "empty messages", "image to text model",
    "max_tokens str", "max_tokens 0 chat", "max_tokens -1", "max_tokens too big", "max_completion_tokens too big",
    "prompt too long by tokens", "prompt too long text", "prompt exactly max_model_len", "chat too long",
    "empty prompt", "empty list prompt", "missing prompt", "bad token id", "neg token id",
    "n=0", "n=-1", "n str", "n=2 temp 0", "n huge", "temperature 3", "temperature -1", "temperature str",
    "top_p 0", "top_p 2", "top_k -5", "min_p 2", "presence 3", "freq 3", "rep 0", "min_tokens>max",
    "stop 5 ok?", "stop empty str", "stop many", "top_logprobs no logprobs", "top_logprobs 30",
    "completions logprobs 30", "stream_options no stream", "tool_choice no tools", "tools empty",
    "tools auto without flag", "tools required", "tools unknown named", "response_format json_schema missing",
    "structured two", "seed float", "logit_bias bad", "cache_salt empty", "cache_salt bad char", "add_gen+continue",
    "prompt_logprobs stream", "chat_template req", "thinking budget", "reasoning_effort bad", "beam stream",
    "GET on chat", "404 path", "405 health",
)  # fmt: skip

ACCEPTED = (
    "empty model string", "bad role", "msg missing content", "content parts", "prompt max-1, max_tokens 3",
    "prompt 2046 + max_tokens 10 clamps", "tools tool_choice none", "priority nonzero", "unknown extra field",
)  # fmt: skip

LONG: dict[str, dict[str, Any]] = {
    "prompt too long by tokens": {"prompt": [2023] * 3000, "max_tokens": 3},
    "prompt too long text": {"prompt": "this " * 3000, "max_tokens": 3},
    "prompt exactly max_model_len": {"prompt": [2023] * 2048, "max_tokens": 3},
    "chat too long": {"messages": [{"role": "user", "content": "this " * 3000}], "max_tokens": 3},
    "prompt max-1, max_tokens 3": {"prompt": [2023] * 2047, "max_tokens": 3},
    "prompt 2046 + max_tokens 10 clamps": {"prompt": [2023] * 2046, "max_tokens": 10},
}
"""Bodies that the capture shows cut short."""


def ask(server: TestServer, capture: Capture) -> PlainReply:
    headers = capture.headers or {"content-type": "application/json"}
    body = LONG.get(capture.name, capture.body or None)
    return call(server, capture.method, capture.path, body, headers)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_that_of_vllm(server: TestServer, reference: Path, name: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden2.txt")[name]
    reply = ask(server, capture)
    assert reply.status == capture.status
    assert reply.body.decode() == capture.reply
    for header, value in capture.reply_headers.items():
        assert reply.headers[header] == value


@pytest.mark.parametrize("name", ACCEPTED)
def test_bodies_that_vllm_accepts_are_accepted(server: TestServer, reference: Path, name: str) -> None:
    capture = captures_by_name(reference / "golden/vllm/golden2.txt")[name]
    reply = ask(server, capture)
    theirs = json.loads(capture.reply)
    assert reply.status == 200
    assert reply.json["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"]
    assert reply.json["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]


def test_a_prompt_of_more_characters_than_a_context_can_hold_is_refused_unread(server: TestServer) -> None:
    limit = 2048 * server.service.model.planner.tokenizer.longest_piece_chars
    error = complete(server, prompt="x" * 200_000).json["error"]
    assert error["message"] == (
        "This model's maximum context length is 2048 tokens. However, your prompt contains 200000 characters "
        f"(more than {limit} characters, which is the upper bound for 2048 input tokens). "
        "Please reduce the length of the input prompt. (parameter=input_text, value=200000)"
    )
    assert (error["param"], error["code"]) == ("input_text", 400)


@pytest.mark.parametrize(
    ("prompt", "problems"),
    [(5, 4), ([["a"]], 4), (["a", 1], 5), ([1.5], 4), ([[1], "a"], 5)],
)
def test_a_prompt_of_no_known_shape_is_refused_with_all_that_is_wrong(
    server: TestServer, prompt: object, problems: int
) -> None:
    reply = complete(server, prompt=prompt)
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith(f"{problems} validation errors:")


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b'{"prompt": "\\ud800", "model": "m"}', b'{"model": "\\ud800", "prompt": "a"}', b"[" * 100_000],
)
def test_no_bytes_make_the_server_fail(server: TestServer, body: bytes) -> None:
    assert call(server, "POST", "/v1/completions", body).status < 500
    assert call(server, "GET", "/health").status == 200


@pytest.mark.parametrize("content", [5, [5], [{"type": "hologram"}]])
def test_content_that_is_no_text_is_refused(server: TestServer, content: object) -> None:
    assert chat(server, messages=[{"role": "user", "content": content}]).status == 400


def test_a_refused_key_is_answered_as_vllm_does(reference: Path) -> None:
    captures = captures_by_name(reference / "golden/vllm/golden3.txt")
    with running_server(api_key=("k1",)) as guarded:
        for name in ("noauth", "badauth", "noauth models"):
            capture = captures[name]
            reply = call(guarded, capture.method, capture.path, capture.body or None, capture.headers)
            assert (reply.status, reply.body.decode()) == (capture.status, capture.reply)
            assert "vary" not in reply.headers
        assert call(guarded, "GET", "/health").status == 200
        assert call(guarded, "GET", "/metrics").status == 200
