"""OpenAI's client with concurrent requests, typed details and errors."""

import asyncio

import openai
import pytest

from tests.wire.serving import TestServer, running_server


def client(server: TestServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


async def test_many_streams_at_once_keep_apart(server: TestServer) -> None:
    async def one(number: int) -> int:
        stream = await openai_client.completions.create(
            model="m", prompt=f"request {number}", max_tokens=10 + number, stream=True, extra_body={"ignore_eos": True}
        )
        return len([chunk async for chunk in stream])

    async with client(server) as openai_client:
        assert await asyncio.gather(*(one(number) for number in range(20))) == [10 + number for number in range(20)]


async def test_log_probabilities_are_typed(server: TestServer) -> None:
    async with client(server) as openai_client:
        reply = await openai_client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2
        )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2, 2, 2]


async def test_a_client_that_leaves_a_stream_frees_its_request(server: TestServer) -> None:
    async with client(server) as openai_client:
        stream = await openai_client.completions.create(
            model="m", prompt="hi", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        for _ in range(200):
            if not server.service.delivery.driver.num_unfinished_requests:
                break
            await asyncio.sleep(0.01)
    assert server.service.delivery.driver.num_unfinished_requests == 0


async def test_a_busy_server_raises_internal_server_error_in_the_client() -> None:
    with running_server(max_num_queued_reqs=1) as server:
        async with client(server) as openai_client:
            with pytest.raises(openai.InternalServerError, match="currently busy"):
                await openai_client.completions.create(model="m", prompt="hi", n=2)


async def test_an_error_inside_a_stream_is_raised(server: TestServer) -> None:
    async with client(server) as openai_client:
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await openai_client.completions.create(model="m", prompt=[5] * 3000, stream=True)
