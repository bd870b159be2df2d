"""OpenAI's client on chats and completions."""

from collections.abc import Iterator

import openai
import pytest

from tests.wire.serving import TestServer, running_server


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
