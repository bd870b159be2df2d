"""Recordings, and their transcripts."""

import io
import struct
import wave
from collections.abc import Iterator
from typing import Any

import pytest

from blis_sim.wings.speech.plan import duration_s
from mockserve.protocol.errors import ApiError
from tests.wire.plain_http import PlainReply, call, chunks_of
from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="module")
def listening() -> Iterator[TestServer]:
    with running_server(task=("transcription",), speed=200.0) as running:
        yield running


def recording(seconds: float) -> bytes:
    """A WAV file of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(int(seconds * 32_000)))
    return buffer.getvalue()


def post_form(server: TestServer, path: str, sound: bytes | None, **fields: str) -> PlainReply:
    """A form as a browser would send it."""
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if sound is not None:
        parts.append(b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + sound)
    body = b"".join(b"--BREAK\r\nContent-Disposition: form-data; %b\r\n" % each for each in parts) + b"--BREAK--\r\n"
    return call(server, "POST", f"/v1/audio/{path}", body, {"content-type": "multipart/form-data; boundary=BREAK"})


def post(server: TestServer, path: str, seconds: float = 4.0, **fields: str) -> PlainReply:
    return post_form(server, path, recording(seconds), **{"model": "m", **fields})


def test_a_longer_recording_has_a_longer_transcript(listening: TestServer) -> None:
    short = post(listening, "transcriptions", 4.2).json
    long = post(listening, "transcriptions", 20).json
    assert short["usage"] == {"type": "duration", "seconds": 5}
    assert len(long["text"]) > 2 * len(short["text"]) > 0


def test_a_translation_has_no_usage(listening: TestServer) -> None:
    assert set(post(listening, "translations").json) == {"text"}


def test_equal_recordings_give_equal_transcripts(listening: TestServer) -> None:
    first, second = (post(listening, "transcriptions", 3).json for _ in range(2))
    assert first == second != post(listening, "transcriptions", 3.5).json


def test_segments_cover_the_recording(listening: TestServer) -> None:
    body = post(listening, "transcriptions", 70, response_format="verbose_json").json
    assert [(each["start"], each["end"]) for each in body["segments"]] == [(0, 30), (30, 60), (60, 70)]
    assert (body["duration"], body["language"], body["words"]) == (70.0, "en", None)
    assert all(each["avg_logprob"] <= 0 and each["tokens"] for each in body["segments"])


def test_a_stream_brings_stretch_after_stretch(listening: TestServer) -> None:
    whole = post(listening, "transcriptions", 70).json["text"]
    reply = post(listening, "transcriptions", 70, stream="true", stream_include_usage="true")
    *chunks, usage = chunks_of(reply.body)
    assert "".join(each["choices"][0]["delta"]["content"] for each in chunks) == whole
    endings = [each["choices"][0] for each in chunks if "finish_reason" in each["choices"][0]]
    assert [each["finish_reason"] for each in endings] == ["stop"] * 3
    assert (usage["choices"], usage["usage"]["completion_tokens"] > 0) == ([], True)
    assert {each["object"] for each in chunks} == {"transcription.chunk"}


def test_counts_may_come_with_every_chunk(listening: TestServer) -> None:
    wanted: dict[str, Any] = {"stream": "true", "stream_include_usage": "true", "stream_continuous_usage_stats": "true"}
    *chunks, _ = chunks_of(post(listening, "translations", **wanted).body)
    counts = [each["usage"]["completion_tokens"] for each in chunks]
    assert counts == sorted(counts)
    assert chunks[0]["object"] == "translation.chunk"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "srt"}, "Currently only support response_format"),
        ({"response_format": "diarized_json"}, "Currently do not support diarized_json for m"),
        ({"response_format": "verbose_json", "stream": "true"}, "verbose_json format doesn't support streaming case"),
        ({"stream": "true", "use_beam_search": "true"}, "Streaming is not currently supported with beam search"),
        ({"stream_include_usage": "true"}, "Stream options can only be defined"),
        ({"response_format": "zz"}, "Input should be 'json', 'text', 'srt', 'verbose_json' or 'vtt'"),
        ({"temperature": "x"}, "Input should be a valid number"),
        ({"vllm_xargs": "{"}, "Failed to parse vllm_xargs"),
        ({"vllm_xargs": "[]"}, "Input should be a valid dictionary"),
    ],
)
def test_a_task_that_no_model_has_is_refused(listening: TestServer, fields: dict[str, Any], message: str) -> None:
    reply = post(listening, "transcriptions", **fields)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]


def test_a_file_that_is_no_audio_is_refused(listening: TestServer) -> None:
    broken = post_form(listening, "transcriptions", b"hello", model="m").json
    assert broken["error"]["message"].startswith("Invalid or corrupted audio data.")
    assert post_form(listening, "transcriptions", None, model="m", file="x").status == 422
    assert post_form(listening, "transcriptions", None, model="m").json["error"]["param"] == "body.file"
    assert "600s" in post(listening, "transcriptions", 601).json["error"]["message"]
    assert "Maximum file size" in post(listening, "transcriptions", 900).json["error"]["message"]
    assert post(listening, "transcriptions", model="nope").status == 404


def test_a_model_that_generates_does_not_transcribe(server: TestServer) -> None:
    assert post(server, "transcriptions").status == 404


def test_lengths_are_read_from_headers() -> None:
    assert duration_s(recording(2.5)) == 2.5
    flac = b"fLaC" + bytes(14) + (44_100 << 44 | 7 << 41 | 88_200).to_bytes(8, "big") + bytes(20)
    assert duration_s(flac) == 2.0
    page = b"OggS" + bytes(2) + struct.pack("<q", 96_000) + bytes(20)
    assert duration_s(page) == 2.0
    vorbis = b"OggS" + bytes(24) + b"\x01vorbis" + bytes(5) + struct.pack("<I", 16_000) + bytes(9)
    assert duration_s(vorbis + b"OggS" + bytes(2) + struct.pack("<q", 48_000)) == 3.0
    assert duration_s(b"ID3" + bytes(15_997)) == 1.0
    for broken in (b"", b"RIFF1234WAVE", b"RIFF1234WAVEdata" + bytes(8), b"OggS", b"nothing at all"):
        with pytest.raises(ApiError):
            duration_s(broken)
