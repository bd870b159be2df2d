"""Malformed uploads, with the status and the words of vLLM's web framework."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import PlainReply, call
from tests.wire.serving import TestServer, running_server
from workshop.attack.uploads import MULTIPART, VALID, WAVE, Part, encoded, field, recording

PATH = "/v1/audio/transcriptions"
DISPOSITION = b'Content-Disposition: form-data; name="%b"'
INVALID = "Invalid multipart data."
NAMELESS = 'The Content-Disposition header field "name" must be provided.'


@pytest.fixture(scope="module")
def listening() -> Iterator[TestServer]:
    """A server of a model that transcribes."""
    with running_server(task=("transcription", "generate")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [each for each in caplog.records if each.exc_info]


def upload(server: TestServer, body: bytes, content_type: str = MULTIPART) -> PlainReply:
    return call(server, "POST", PATH, body, {"content-type": content_type})


@pytest.mark.parametrize(
    ("body", "content_type", "detail"),
    [
        (encoded(VALID), "multipart/form-data; boundary=other", INVALID),
        (encoded(VALID), "multipart/form-data; boundary=", INVALID),
        (encoded(VALID), "multipart/form-data", "Missing boundary in multipart."),
        (encoded(VALID).replace(b"\r\n", b"\n"), MULTIPART, INVALID),
        (encoded(VALID).replace(b"\r\n", b"\r"), MULTIPART, INVALID),
        (b"preamble\r\n" + encoded(VALID), MULTIPART, INVALID),
        (bytes(100) + encoded(VALID), MULTIPART, INVALID),
        (encoded((*VALID, Part((), b"x"))), MULTIPART, NAMELESS),
        (encoded((*VALID, Part((b"Content-Type: text/plain",), b"x"))), MULTIPART, NAMELESS),
        (encoded((*VALID, Part((b"Content-Disposition: form-data",), b"x"))), MULTIPART, NAMELESS),
        (
            encoded((*VALID, *(field(f"f{each}", b"x") for each in range(1100)))),
            MULTIPART,
            "Too many fields. Maximum number of fields is 1000.",
        ),
        (
            encoded((*VALID, field("prompt", b"x" * 1_100_000))),
            MULTIPART,
            "Part exceeded maximum size of 1024KB.",
        ),
        (
            encoded([recording(b"")] * 1100),
            MULTIPART,
            "Too many files. Maximum number of files is 1000.",
        ),
        (
            b"&".join(b"f%d=x" % each for each in range(1100)),
            "application/x-www-form-urlencoded",
            "Too many fields. Maximum number of fields is 1000.",
        ),
    ],
)
def test_refuses_a_form_that_cannot_be_read(listening: TestServer, body: bytes, content_type: str, detail: str) -> None:
    reply = upload(listening, body, content_type)
    assert (reply.status, reply.json) == (400, {"detail": detail})


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/mixed; boundary=frontier"])
def test_finds_no_fields_in_what_is_no_form(listening: TestServer, content_type: str) -> None:
    reply = upload(listening, encoded(VALID), content_type)
    assert reply.status == 400
    assert "'loc': 'body.file', 'msg': 'Field required'" in reply.json["error"]["message"]


def test_refuses_text_in_place_of_a_recording(listening: TestServer) -> None:
    reported: dict[str, Any] = {"message": "Expected 'file' to be a file-like object, not 'str'."}
    reported |= {"type": "Unprocessable Entity", "param": None, "code": 422}
    for body, content_type in (
        (b"model=m&file=%ff", "application/x-www-form-urlencoded"),
        (encoded((field("file", WAVE), *VALID[1:])), MULTIPART),
    ):
        reply = upload(listening, body, content_type)
        assert (reply.status, reply.json) == (422, {"error": reported})


@pytest.mark.parametrize(
    "body",
    [
        encoded(VALID, ends=False),
        encoded(VALID) + b"epilogue",
        b"\r\n" + encoded(VALID),
        encoded((*VALID, Part((DISPOSITION % b"model", b"Content-Type: text/plain; charset=nonsense"), b"m"))),
        encoded((*VALID, Part((DISPOSITION % b"x", b"Content-Transfer-Encoding: nonsense"), b"=ZZ"))),
        encoded((*VALID, Part((DISPOSITION % b"x", b"Content-Type: multipart/mixed; boundary=inner"), b"--inner--"))),
        encoded((*VALID, Part((DISPOSITION % b"\xff",), b"\xff"))),
        encoded((*VALID, field("_charset_", b"nonsense"))),
    ],
)
def test_takes_odd_forms_as_vllm_does(listening: TestServer, body: bytes) -> None:
    assert upload(listening, body).status == 200


def test_refuses_a_file_in_place_of_text(listening: TestServer) -> None:
    odd = Part((b'Content-Disposition: form-data; name="model"; filename="m"',), b"m")
    message = upload(listening, encoded((*VALID[:1], odd))).json["error"]["message"]
    assert "'type': 'string_type', 'loc': 'body.model'" in message
    assert "UploadFile(filename=" in message


def test_words_arguments_that_are_too_deep_as_python_does(listening: TestServer) -> None:
    reply = upload(listening, encoded((*VALID, field("vllm_xargs", b"[" * 100_000))))
    message = "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
    reported = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    assert (reply.status, json.loads(reply.body)) == (500, {"error": reported})
