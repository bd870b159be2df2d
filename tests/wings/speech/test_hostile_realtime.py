"""Hostile events of the realtime interface: vLLM's errors, and a server that goes on answering other clients."""

import base64
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.patience import PATIENCE_S, attempts, wait_until
from tests.wings.speech.test_realtime import COMMIT, FINAL, MODEL, received_events
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server
from tests.wire.test_hostile_constraints import longest_pause_s

DEEP = "[" * 100_000
TOO_DEEP = "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
NO_UTF_8 = "Error serializing to JSON: UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position"
PAGE = "For further information visit https://errors.pydantic.dev/2.14/v"
MANY_LISTS = f"[{','.join(['[]'] * 690_000)}]"
LONGEST_PAUSE_S = 0.1
"""Server, client and watch share one interpreter here; 2 MB of lists took the loop 0.2 s, a flood 5 s."""


@pytest.fixture(scope="module")
def listening() -> Iterator[TestServer]:
    with running_server(task=("realtime",), speed=200.0) as running:
        yield running


def append(audio: Any) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": audio}


def unreadable(title: str, field: str, message: str, kind: str, found: str) -> str:
    """The error of a field in pydantic's words."""
    return f"1 validation error for {title}\n{field}  {message} [type={kind}, {found}]\n    {PAGE}/{kind}"


def no_audio(found: str) -> str:
    return unreadable("InputAudioBufferAppend", "audio\n", "Input should be a valid string", "string_type", found)


def no_final(message: str, kind: str, found: str) -> str:
    return unreadable("InputAudioBufferCommit", "final\n", f"Input should be a valid {message}", kind, found)


NO_BOOLEAN = ("boolean, unable to interpret input", "bool_parsing")
NO_TEXT = ("Input should be a valid string, unable to parse raw data as a unicode string", "string_unicode")
UNTEXT = "input_value='\\ud800', input_type=str"


@pytest.mark.parametrize(
    ("event", "error", "code"),
    [
        (DEEP, TOO_DEEP, "processing_error"),
        (f'{{"type":{DEEP}', TOO_DEEP, "processing_error"),
        ("1" * 5000, re.compile(r"Exceeds the limit \(4300 digits\) .* 5000 digits.*"), "processing_error"),
        ({"type": "\ud800"}, f"{NO_UTF_8} 20: surrogates not allowed", "processing_error"),
        ({**MODEL, "model": "\ud800"}, f"{NO_UTF_8} 11: surrogates not allowed", "processing_error"),
        ({**MODEL, "model": ["\ud800"]}, "The model `['\\ud800']` does not exist.", "model_not_found"),
        (append("AAAA\ud800"), "Invalid audio data", "invalid_audio"),
        (append("AA=AAAA"), "Invalid audio data", "invalid_audio"),
        (append(1), no_audio("input_value=1, input_type=int"), "processing_error"),
        (append(None), no_audio("input_value=None, input_type=NoneType"), "processing_error"),
        (
            append(["é" * 50]),
            no_audio(f"input_value=['{'é' * 11}...{'é' * 11}'], input_type=list"),
            "processing_error",
        ),
        (
            {"type": "input_audio_buffer.append"},
            unreadable(
                *("InputAudioBufferAppend", "audio\n", "Field required", "missing"),
                "input_value={'type': 'input_audio_buffer.append'}, input_type=dict",
            ),
            "processing_error",
        ),
        (
            {**append("AAA="), "\ud800": 1},
            unreadable("InputAudioBufferAppend", "", *NO_TEXT, UNTEXT),
            "processing_error",
        ),
        (COMMIT | {"final": None}, no_final("boolean", "bool_type", "input_value=None, input_type=NoneType"), None),
        (COMMIT | {"final": "maybe"}, no_final(*NO_BOOLEAN, "input_value='maybe', input_type=str"), None),
        (COMMIT | {"final": "\ud800"}, unreadable("InputAudioBufferCommit", "final\n", *NO_TEXT, UNTEXT), None),
        ({**MODEL, "model": 1.5}, "The model `1.5` does not exist.", "model_not_found"),
        ({**MODEL, "model": "/home/me/model"}, "The model `<path>` does not exist.", "model_not_found"),
        ({"type": ["/home/me"]}, "Unknown event type: ['/home/me']", "unknown_event"),
        (f'{{"type":{MANY_LISTS}}}', re.compile(r"Unknown event type: \[\[\], .*\.\.\.\[truncated\]"), "unknown_event"),
    ],
)
def test_an_event_of_a_wrong_form_is_answered_as_by_vllm(
    listening: TestServer, event: Any, error: "str | re.Pattern[str]", code: str | None
) -> None:
    found = received_events(listening, MODEL, event, COMMIT, FINAL)
    assert (found[0]["type"], found[0]["code"]) == ("error", code or "processing_error")
    if isinstance(error, str):
        assert found[0]["error"] == error
    else:
        assert error.fullmatch(found[0]["error"])
    assert found[-1]["type"] == "transcription.done"


@pytest.mark.parametrize("final", ["yes", 1, "ON", 1.0])
def test_an_utterance_ends_by_whatever_reads_as_true(listening: TestServer, final: Any) -> None:
    assert received_events(listening, MODEL, COMMIT, {**COMMIT, "final": final})[-1]["type"] == "transcription.done"


@pytest.mark.parametrize("audio", ["AA==AAAAAA", "AAAA AAAA", "A*AA=\n"])
def test_characters_that_are_no_base64_are_ignored(listening: TestServer, audio: str) -> None:
    *deltas, end = received_events(listening, MODEL, COMMIT, append(audio), FINAL)
    assert {each["type"] for each in deltas} == {"transcription.delta"}
    assert end["usage"]["completion_tokens"] == len(deltas) > 0


def frame(payload: bytes, kind: int = 1) -> bytes:
    """A whole message, with a mask of zeros."""
    length = bytes([len(payload) | 0x80]) if len(payload) < 126 else b"\xff" + len(payload).to_bytes(8, "big")
    return bytes([0x80 | kind]) + length + bytes(4) + payload


def connected(server: TestServer) -> socket.socket:
    """The socket of a WebSocket that has been opened."""
    end = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
    end.sendall(f"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
    received = b""
    while b"session.created" not in received:
        received += end.recv(4096)
    return end


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(MANY_LISTS.encode()), id="many lists"),
        pytest.param(frame(b'{"type":%b}' % MANY_LISTS.encode()), id="many lists as a type"),
        pytest.param(frame(b"{}") * 30_000, id="a flood of events"),
        pytest.param(frame(b"", 9) * 100_000, id="a flood of pings"),
        pytest.param(frame(json.dumps(append("AAA=")).encode()) * 20_000, id="a flood of sound"),
    ],
)
def test_health_is_answered_beside_hostile_events(listening: TestServer, sent: bytes) -> None:
    pauses_s: list[float] = []
    for _ in attempts():
        pauses_s.append(longest_pause_s(listening, threading.Thread(target=send_and_drain, args=(listening, sent))))
        if pauses_s[-1] < LONGEST_PAUSE_S:
            break
    assert min(pauses_s) < LONGEST_PAUSE_S, pauses_s


def send_and_drain(server: TestServer, sent: bytes) -> None:
    """Send bytes, and read until the server has answered an event behind them."""
    with closing(connected(server)) as end:
        sender = threading.Thread(target=end.sendall, args=(sent + frame(b'{"type":"the last"}'),))
        sender.start()
        received = b""
        while b"the last" not in received:
            received = received[-16:] + end.recv(1 << 16)
        sender.join()


def test_an_event_with_the_text_of_a_head_is_read_as_it_was_sent(listening: TestServer) -> None:
    with closing(connected(listening)) as end:
        end.sendall(frame(b'{"type":\nauthorization: key \n"x"}') + frame(b'{"type":"the last"}'))
        received = b""
        while b"the last" not in received:
            more = end.recv(4096)
            assert more
            received += more
    assert b"invalid_json" in received


def test_connections_are_counted_on_the_metrics_page() -> None:
    with running_server(task=("realtime",), speed=200.0) as server:
        assert figures(server) == (0, 0, 0)
        with closing(connected(server)) as end:
            assert figures(server) == (1, 1, 0)
            with suppress(OSError):
                end.shutdown(socket.SHUT_WR)
        wait_until(lambda: figures(server) == (0, 1, 1))
        received_events(server, MODEL, COMMIT, FINAL)
        wait_until(lambda: figures(server) == (0, 2, 2))


def figures(server: TestServer) -> tuple[int, int, int]:
    """WebSockets that are open, that were opened, and whose duration is known."""
    page = call(server, "GET", "/metrics").body.decode()
    names = ("connections_active", "connections_total", "connection_duration_seconds_count")
    found = [re.search(rf"^vllm:websocket_{name} (\d+)", page, re.MULTILINE) for name in names]
    active, opened, closed = (int(float(each[1])) for each in found if each is not None)
    return active, opened, closed


def test_a_server_without_websockets_has_no_figures_of_them() -> None:
    with running_server() as server:
        assert b"websocket" not in call(server, "GET", "/metrics").body
