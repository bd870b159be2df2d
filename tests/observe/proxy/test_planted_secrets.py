"""Secrets of many kinds, planted wherever they travel, are in no file of a recording and in no message about it."""

import base64
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard

from observe.proxy.recording_process import Recording
from observe.proxy.tap import EventKind
from tests.observe.proxy.test_recording import Wire, chunk, job_in, rows_in
from traces.content import read_content
from traces.redaction import Redactor

HEADER_SECRETS = {
    "Authorization": "Bearer plantedbearer-77",
    "X-Api-Key": "plantedxapikey7",
    "X-Goog-Api-Key": "plantedgoogle7",
    "Cookie": "a=1; session=plantedcookie7",
    "Proxy-Authorization": "Basic " + base64.b64encode(b"ann:plantedbasic7").decode(),
    "X-Amz-Security-Token": "plantedamz7",
    "X-User-Jwt": "eyJhbGciOiJub25lIn0.eyJwbGFudGVkIjoiand0In0.x",
    "Referer": "https://h.example/?page=2&token=plantedreferer7",
    "X-Callback": "https://ann:plantedurl7@h.example/",
}
MEMBER_SECRETS: dict[str, Any] = {
    "openai_api_key": "plantedopenai",
    "authorization_token": "plantedmcp",
    "aws_secret_access_key": "plantedaws",
    "aws_session_token": "plantedawssession",
    "AWS_ACCESS_KEY_ID": "plantedawsid",
    "token": "plantedtoken",
    "id_token": "plantedidtoken",
    "jwt": "plantedjwt",
    "passwd": "plantedpasswd",
    "password": 7474747474,
    "api_keys": ["plantedlist"],
    "api-key": "planteddash",
    "clientSecret": "plantedcamel",
    "credentials": {"user": "ann", "pw": "plantednested"},
    "headers": {"cookie": "plantedmemberheader", "X-Goog-Api-Key": "plantedgooglemember"},
    "env": [{"name": "HF_TOKEN", "value": "plantedpair"}],
    "arguments": '{"api_key": "plantedargument"}',
}
SHAPES = {
    "openai": "sk-proj-" + "PLANTED" * 4,
    "anthropic": "sk-ant-api03-" + "PLANTED" * 4,
    "aws": "AKIA" + "PLANTEDPLANTED7",
    "github": "ghp_" + "PLANTED" * 5,
    "huggingface": "hf_" + "PLANTED" * 5,
    "google": "AIza" + "PLANTED" * 5,
    "slack": "xoxb-7-PLANTEDPLANTED",
    "gitlab": "glpat-" + "PLANTED" * 3,
    "jwt": "eyJhbGciOiJub25lIn0.eyJQTEFOVEVEIjoxfQ.PLANTED",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nPLANTED\n-----END RSA PRIVATE KEY-----",
    "url": "postgres://ann:PLANTED7@db.example/x",
    "assignment": "export MY_API_KEY=PLANTED-77",
}
HIDDEN = ("planted", "PLANTED", "cGxhbnRlZ", "UExBTlRFR", "7474747474", "and0In0")

QUERY = (
    "/v1/chat/completions?api_key=plantedquery&k%65y=plantedescaped&sig=plantedsig"
    ";token=plantedsemicolon#access_token=plantedfragment"
)


def files_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def assert_hidden(folder: Path) -> None:
    written = files_of(folder).decode()
    assert [each for each in HIDDEN if each in written] == []


def request(body: bytes, target: str = QUERY, kind: str = "application/json", **headers: str) -> bytes:
    fields = {
        **HEADER_SECRETS,
        "Content-Type": kind,
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    lines = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    return f"POST {target} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def reply(body: bytes, status: str = "200 OK", kind: str = "application/json", coding: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nset-cookie: sid=plantedsetcookie\r\n"
    head += "location: https://h.example/?code=plantedlocation\r\nx-echo: plantedxapikey7\r\n"
    head += f"content-encoding: {coding}\r\n" if coding else ""
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def exchanged(recording: Recording, sent: bytes, received: bytes) -> None:
    wire = Wire(recording)
    wire.num_connections = len(recording._conversations)
    connection = wire.connect()
    wire.happens(EventKind.REQUEST, connection, 10, sent)
    wire.happens(EventKind.REPLY, connection, 20, received)
    wire.happens(EventKind.SERVER_GONE, connection, 30)


def chat(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}).encode()


WHOLE = json.dumps({"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}], **MEMBER_SECRETS}).encode()


@pytest.mark.parametrize("records_content", [False, True])
def test_secrets_in_heads_and_members_of_requests_and_replies(records_content: bool, tmp_path: Path) -> None:
    job = job_in(tmp_path, redact=())
    if not records_content:
        paths = job.paths.__class__(job.paths.header, job.paths.data, job.paths.itl)
        job = job_in(tmp_path, redact=(), paths=paths)
    recording = Recording(job)
    exchanged(recording, request(chat(tools=[MEMBER_SECRETS], **MEMBER_SECRETS)), reply(WHOLE))
    exchanged(recording, request(gzip.compress(chat(**MEMBER_SECRETS)), Content_Encoding="gzip"), reply(WHOLE))
    exchanged(recording, request(b"api_key=planted&model=m", kind="application/x-www-form-urlencoded"), reply(WHOLE))
    exchanged(recording, request(b'{"api_key":"planted1","api_key":"","model":"m"}'), reply(WHOLE))
    exchanged(recording, request(b'{"api_key":"planted2","temperature":NaN}'), reply(WHOLE))
    exchanged(recording, request(b'{"api\\u005fkey":"planted3","api_key":""}'), reply(WHOLE))
    exchanged(recording, request(b'{"api_key":"planted4", and here it is cut'), reply(WHOLE))
    recording.close()
    assert len(rows_in(tmp_path)) == 7
    assert_hidden(tmp_path)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "unknown"])
def test_compressed_replies_are_read_or_not_kept(coding: str, tmp_path: Path) -> None:
    encode = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress}.get(coding, bytes)
    recording = Recording(job_in(tmp_path, redact=()))
    exchanged(recording, request(chat()), reply(encode(WHOLE), coding=coding))
    stream = b"".join(b"data: %s\n\n" % each for each in (WHOLE, b"[DONE]"))
    exchanged(recording, request(chat(stream=True)), reply(encode(stream), kind="text/event-stream", coding=coding))
    recording.close()
    assert_hidden(tmp_path)
    assert {row.status for row in rows_in(tmp_path)} == {"ok"}
    assert (recording.report.num_unread == 2) == (coding == "unknown")
    texts = [each.reply_body for each in read_content(tmp_path / "r.content.jsonl").exchanges]
    assert all(b"fine" in each for each in texts) == (coding != "unknown")


ECHOES = "Incorrect API key provided: plantedxapikey7 (plantedbearer-77, plantedbasic7, plantedquery)"


@pytest.mark.parametrize("records_content", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
def test_errors_that_repeat_keys_keep_their_names_alone(records_content: bool, is_stream: bool, tmp_path: Path) -> None:
    job = job_in(tmp_path, redact=())
    if not records_content:
        job = job_in(tmp_path, redact=(), paths=job.paths.__class__(job.paths.header, job.paths.data, job.paths.itl))
    recording = Recording(job)
    error = {"error": {"message": f"{ECHOES} for the prompt: the whole prompt", "code": "invalid_api_key"}}
    body = json.dumps(error).encode()
    if is_stream:
        exchanged(recording, request(chat(stream=True)), reply(b"data: %s\n\n" % body, kind="text/event-stream"))
    else:
        exchanged(recording, request(chat()), reply(body, "401 Unauthorized"))
    recording.close()
    assert_hidden(tmp_path)
    (row,) = rows_in(tmp_path)
    assert row.status == "error"
    assert ("the whole prompt" in row.error_message) is records_content
    if not records_content:
        assert row.error_message == ("streaming error" if is_stream else "HTTP 401: invalid_api_key")


@pytest.mark.parametrize("name", SHAPES)
def test_keys_of_known_shapes_in_prompts_and_replies(name: str, tmp_path: Path) -> None:
    secret = SHAPES[name]
    recording = Recording(job_in(tmp_path, redact=()))
    prompt = f"my key is {secret} so use it"
    exchanged(recording, request(chat(prompt=prompt, user=secret)), reply(chat(text=prompt), "400 Bad Request"))
    wire = Wire(recording)
    wire.num_connections = 50
    connection = wire.connect()
    wire.happens(EventKind.REQUEST, connection, 10, request(chat(stream=True)))
    pieces = [prompt[at : at + 5] for at in range(0, len(prompt), 5)]
    events = [json.dumps({"choices": [{"index": 0, "delta": {"content": each}}]}) for each in pieces]
    stream = "".join(f": {secret}\ndata: {each}\n\n" for each in events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    wire.happens(EventKind.REPLY, connection, 20, head + chunk(stream + "data: [DONE]\n\n") + b"0\r\n\r\n")
    recording.close()
    assert_hidden(tmp_path)
    assert "my key is" in files_of(tmp_path).decode()


def test_what_a_pattern_of_the_user_hides_is_in_no_column_and_not_in_the_file_as_a_pattern(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path, redact=("hidden[0-9]*", "rosebud")))
    sent = chat(model="hidden1", rosebud=1, messages=[{"role": "hidden2", "content": "rosebud"}], card={"hidden3": 1})
    headers = {"User-Agent": "hidden4/1", "X-Request-Id": "hidden5", "X-Hint": "rosebud"}
    received = {"choices": [{"message": {"content": "a hidden6"}, "finish_reason": "hidden7"}]}
    exchanged(recording, request(sent, "/hidden8/v1/chat/completions", **headers), reply(json.dumps(received).encode()))
    recording.close()
    written = files_of(tmp_path).decode()
    assert "hidden" not in written
    assert "rosebud" not in written
    (row,) = rows_in(tmp_path)
    assert (row.model, row.client_id, row.x_request_id) == ("[redacted]", "[redacted]/1", "[redacted]")


HARMLESS: Mapping[str, Any] = {
    "max_tokens": 5,
    "prompt_cache_key": "conversation-1",
    "eos_token": "</s>",
    "logprobs": {"content": [{"token": "word", "logprob": -0.5, "bytes": [119]}]},
    "messages": [{"role": "user", "content": "What is a bearer bond? The basic secret: a token of trust."}],
    "tools": [{"parameters": {"properties": {"password": {"type": "string", "description": "a password"}}}}],
}


def test_words_that_are_no_secrets_stay_byte_for_byte() -> None:
    body = json.dumps(HARMLESS)
    assert Redactor(()).body(body) == body
