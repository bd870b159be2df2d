"""The realtime interface: speech over a WebSocket, with vLLM's events and errors."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from blis_sim.wings.speech.realtime import SAMPLE_RATE, AudioBuffer
from tests.patience import PATIENCE_S
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

MODEL = {"type": "session.update", "model": "m"}
COMMIT = {"type": "input_audio_buffer.commit"}
FINAL = {**COMMIT, "final": True}


@pytest.fixture(scope="module")
def listening() -> Iterator[TestServer]:
    with running_server(task=("realtime",), speed=200.0) as running:
        yield running


def sound(seconds: float, fill: bytes = b"\1\2") -> dict[str, Any]:
    """An event with so much PCM16."""
    samples = fill * round(seconds * SAMPLE_RATE)
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples).decode()}


def received_events(server: TestServer, *events: Any, until: str = "transcription.done") -> list[dict[str, Any]]:
    """Send events, texts as they are; return the replies behind the greeting, up to the first of this type."""

    async def talk() -> list[dict[str, Any]]:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/v1/realtime") as socket:
            greeting = await socket.receive_json(timeout=PATIENCE_S)
            assert (greeting["type"], set(greeting)) == ("session.created", {"type", "id", "created"})
            for each in events:
                await socket.send_str(each if isinstance(each, str) else json.dumps(each))
            found: list[dict[str, Any]] = []
            while not found or found[-1]["type"] != until:
                found.append(await socket.receive_json(timeout=PATIENCE_S))
            return found

    return asyncio.run(talk())


def test_an_utterance_has_its_text_in_deltas_and_then_whole(listening: TestServer) -> None:
    *deltas, end = received_events(listening, MODEL, COMMIT, sound(1), sound(2), FINAL)
    assert {each["type"] for each in deltas} == {"transcription.delta"}
    assert "".join(each["delta"] for each in deltas) == end["text"] != ""
    counts = end["usage"]
    assert counts["completion_tokens"] == len(deltas)
    assert counts["prompt_tokens"] == 154
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    assert list(counts)[3:] == ["prompt_tokens_details", "completion_tokens_details"]


def test_text_comes_while_the_client_still_speaks(listening: TestServer) -> None:
    """Five seconds are transcribed at once; the end has not been said yet."""
    first = received_events(listening, MODEL, COMMIT, sound(6), until="transcription.delta")
    assert [each["type"] for each in first] == ["transcription.delta"]


def test_longer_speech_has_more_text_and_equal_speech_the_same(listening: TestServer) -> None:
    short, again, long, other = (
        received_events(listening, MODEL, COMMIT, *speech, FINAL)[-1]
        for speech in ([sound(4)], [sound(1), sound(3)], [sound(5), sound(7)], [sound(4, b"\3\4")])
    )
    assert short == again
    assert long["usage"]["completion_tokens"] > 2 * short["usage"]["completion_tokens"]
    assert other["text"] != short["text"]


def test_a_connection_has_one_utterance_after_the_other(listening: TestServer) -> None:
    found = received_events(listening, MODEL, COMMIT, sound(1), FINAL)
    assert found[-1]["type"] == "transcription.done"
    silent = received_events(listening, MODEL, COMMIT, FINAL)
    assert silent[0]["text"] == ""


@pytest.mark.parametrize(
    ("event", "error", "code"),
    [
        ("{", "Invalid JSON", "invalid_json"),
        ([1], "'list' object has no attribute 'get'", "processing_error"),
        ({"type": "speak"}, "Unknown event type: speak", "unknown_event"),
        ({}, "Unknown event type: None", "unknown_event"),
        ({"type": "session.update"}, "Missing required field: model", "invalid_event"),
        ({"type": "session.update", "model": "x"}, "The model `x` does not exist.", "model_not_found"),
        (
            COMMIT,
            "Model not validated. Make sure to validate the model by sending a session.update event.",
            "model_not_validated",
        ),
        ({"type": "input_audio_buffer.append", "audio": "A"}, "Invalid audio data", "invalid_audio"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "Invalid audio data", "invalid_audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "Invalid audio data", "invalid_audio"),
    ],
)
def test_invalid_events_get_errors_and_the_connection_stays_open(
    listening: TestServer, event: Any, error: str, code: str
) -> None:
    found = received_events(listening, event, MODEL, COMMIT, FINAL)
    assert found[0] == {"type": "error", "error": error, "code": code}
    assert found[-1]["type"] == "transcription.done"


def test_websockets_are_no_http_requests_of_the_metrics_page() -> None:
    with running_server(task=("realtime",), speed=200.0) as server:
        received_events(server, MODEL, COMMIT, FINAL)
        assert "/v1/realtime" not in call(server, "GET", "/metrics").body.decode()


def test_without_a_websocket_the_path_is_unknown(listening: TestServer) -> None:
    for method in ("GET", "POST"):
        reply = call(listening, method, "/v1/realtime", b"", {})
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"})


def test_the_server_frees_what_a_client_that_leaves_has_in_the_engine(listening: TestServer) -> None:
    received_events(listening, MODEL, COMMIT, sound(30), until="transcription.delta")
    assert received_events(listening, MODEL, COMMIT, sound(1), FINAL)[-1]["type"] == "transcription.done"


def test_a_buffer_keeps_lengths_and_gives_whole_segments() -> None:
    buffer = AudioBuffer()
    for _ in range(3):
        buffer.append(b"\0\0" * 3 * SAMPLE_RATE)
    segment, is_end = buffer.take()
    assert segment is not None
    assert (segment.duration_s, is_end) == (5.0, False)
    assert buffer.take() == (None, False)
    assert buffer.end()
    rest, is_end = buffer.take()
    assert rest is not None
    assert (rest.duration_s, is_end) == (4.0, False)
    assert [buffer.take(), buffer.take()] == [(None, True), (None, False)]
