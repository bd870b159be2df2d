"""LangChain's OpenAI chat model against our server."""

import asyncio
from typing import Any

import pytest

from tests.wire.clients.optional import client_library
from tests.wire.serving import TestServer

langchain_openai = client_library("langchain_openai")

pytestmark = pytest.mark.filterwarnings("ignore")


def model(server: TestServer, **fields: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0, **{"max_tokens": 6, **fields}
    )


def test_langchain_answers_with_its_counts(server: TestServer) -> None:
    message = model(server).invoke("hello there")
    assert message.content
    assert message.response_metadata["finish_reason"] == "length"
    assert message.usage_metadata["output_tokens"] == 6


def test_langchain_streams_with_its_counts(server: TestServer) -> None:
    chunks = list(model(server, stream_usage=True).stream("hello there"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 6


def test_langchain_gets_log_probabilities(server: TestServer) -> None:
    message = model(server, logprobs=True, top_logprobs=2).invoke("hello there")
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == message.content


def test_langchain_answers_many_at_once(server: TestServer) -> None:
    async def ask() -> list[Any]:
        return list(await model(server).abatch(["one", "two", "three"]))

    assert [bool(message.content) for message in asyncio.run(ask())] == [True] * 3
