"""OpenAI's client on responses, embeddings and transcriptions."""

import io
import wave
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.wire.serving import TestServer, running_server


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


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
