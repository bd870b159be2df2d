"""LiteLLM as a client of a vLLM server: its `hosted_vllm` provider."""

import asyncio
from typing import Any

import pytest

from tests.wire.clients.optional import client_library
from tests.wire.serving import TestServer

litellm = client_library("litellm")

pytestmark = pytest.mark.filterwarnings("ignore")

MESSAGES = [{"role": "user", "content": "hello there"}]


def options(server: TestServer, **fields: Any) -> dict[str, Any]:
    return {"api_base": f"{server.url}/v1", "api_key": "none", "messages": MESSAGES, "num_retries": 0, **fields}


def test_litellm_completes_a_chat(server: TestServer) -> None:
    reply = litellm.completion("hosted_vllm/m", **options(server, max_tokens=5))
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 5


def test_litellm_streams_a_chat_with_usage(server: TestServer) -> None:
    fields = options(server, max_tokens=5, stream=True, stream_options={"include_usage": True})
    chunks = list(litellm.completion("hosted_vllm/m", **fields))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [5]


def test_litellm_runs_many_at_once(server: TestServer) -> None:
    async def ask() -> list[Any]:
        fields = options(server, max_tokens=3)
        return list(await asyncio.gather(*(litellm.acompletion("hosted_vllm/m", **fields) for _ in range(8))))

    assert [reply.usage.completion_tokens for reply in asyncio.run(ask())] == [3] * 8


def test_litellm_completes_text(server: TestServer) -> None:
    fields = {"api_base": f"{server.url}/v1", "api_key": "none", "prompt": "hello", "max_tokens": 4, "num_retries": 0}
    reply = litellm.text_completion(model="text-completion-openai/m", **fields)
    assert reply.choices[0].text
    assert reply.usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"max_tokens": 0}, "BadRequestError"), ({"messages": [{"role": "user", "content": "a " * 5000}]}, "BadRequest")],
)
def test_litellm_raises_its_own_errors(server: TestServer, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(litellm.exceptions.BadRequestError, match=error):
        litellm.completion("hosted_vllm/m", **options(server, **fields))


def test_an_unknown_model_is_not_found(server: TestServer) -> None:
    with pytest.raises(litellm.exceptions.NotFoundError):
        litellm.completion("hosted_vllm/nope", **options(server))
