"""OpenAI's client, one by one and with concurrent requests: results, typed details and errors."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.lazy import LazyModule
from tests.wire.serving import TestServer, running_server

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_client_lists_the_served_names(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]


def test_the_client_completes_a_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=5
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5


def test_the_client_streams_a_chat_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) == 5
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_the_client_completes_several_prompts_with_several_choices(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="m", prompt=["one", "two words"], n=2, max_tokens=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 3
    assert reply.usage.completion_tokens == 12


def test_the_client_streams_a_completion(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="m", prompt="hello", max_tokens=4, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        client.completions.create(model="nope", prompt="hello")
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        client.completions.create(model="m", prompt="hello", max_tokens=0)


def test_a_key_is_demanded_where_one_is_set() -> None:
    with running_server(api_key=("k1", "k2")) as guarded:
        with (
            openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="k2", max_retries=0) as client:
            assert client.models.list().data


def sound() -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(bytes(16_000 * 6))
    return "speech.wav", buffer.getvalue()


def test_the_client_gets_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="hello", instructions="be brief", max_output_tokens=9)
    assert (response.status, bool(response.output_text)) == ("incomplete", True)
    assert response.usage is not None
    assert response.usage.output_tokens == 9


def test_the_client_puts_the_events_of_a_response_together(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="hello") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text != ""


def test_the_client_calls_a_function_of_a_response() -> None:
    tool: Any = {
        "type": "function",
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "strict": True,
    }
    with (
        running_server(enable_auto_tool_choice=True, tool_call_parser="hermes") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        response = client.responses.create(model="m", input="hello", tools=[tool], tool_choice="required")
        assert {each.type for each in response.output} == {"function_call"}


def test_the_client_keeps_and_continues_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    with (
        running_server() as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = client.responses.create(model="m", input="hello", max_output_tokens=5)
        assert client.responses.retrieve(first.id).output_text == first.output_text
        second = client.responses.create(model="m", input="more", previous_response_id=first.id, max_output_tokens=5)
        assert second.previous_response_id == first.id
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_nope")


def test_the_client_embeds_and_decodes_base64() -> None:
    with (
        running_server(runner="pooling") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        found = client.embeddings.create(model="m", input=["one", "two"])
        floats = client.embeddings.create(model="m", input=["one", "two"], encoding_format="float")
        assert len(found.data) == 2
        assert found.data[1].embedding == pytest.approx(floats.data[1].embedding)
        assert sum(each * each for each in found.data[0].embedding) == pytest.approx(1)


def test_the_client_transcribes_recordings() -> None:
    with (
        running_server(task=("transcription",), speed=200.0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        heard = client.audio.transcriptions.create(model="m", file=sound())
        verbose = client.audio.transcriptions.create(model="m", file=sound(), response_format="verbose_json")
        assert (verbose.text, verbose.duration) == (heard.text, 6.0)


def async_client(server: TestServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


async def test_many_streams_at_once_keep_apart(server: TestServer) -> None:
    async def one(number: int) -> int:
        stream = await openai_client.completions.create(
            model="m", prompt=f"request {number}", max_tokens=10 + number, stream=True, extra_body={"ignore_eos": True}
        )
        return len([chunk async for chunk in stream])

    async with async_client(server) as openai_client:
        assert await asyncio.gather(*(one(number) for number in range(20))) == [10 + number for number in range(20)]


async def test_log_probabilities_are_typed(server: TestServer) -> None:
    async with async_client(server) as openai_client:
        reply = await openai_client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=3, logprobs=True, top_logprobs=2
        )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2, 2, 2]


async def test_a_client_that_leaves_a_stream_frees_its_request(server: TestServer) -> None:
    async with async_client(server) as openai_client:
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
        async with async_client(server) as openai_client:
            with pytest.raises(openai.InternalServerError, match="currently busy"):
                await openai_client.completions.create(model="m", prompt="hi", n=2)


async def test_an_error_inside_a_stream_is_raised(server: TestServer) -> None:
    async with async_client(server) as openai_client:
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await openai_client.completions.create(model="m", prompt=[5] * 3000, stream=True)
