"""A library in Rust that panics while a request is answered: an internal error, after which the server goes on."""

import pytest

from mockserve.serving.planner import Planner
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

BODY = {"model": "m", "prompt": "hi", "max_tokens": 2}


class PanicError(BaseException):
    """The error that such a library raises: no Exception, and of a type that cannot be imported."""


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_panic_is_answered_with_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, long: bool, stream: bool
) -> None:
    def panic(*_: object, **__: object) -> None:
        raise PanicError("assertion failed")

    body = {**BODY, "stream": stream, **({"user": "u" * 100_000} if long else {})}
    with running_server() as server:
        assert complete(server, body) == 200
        with monkeypatch.context() as patch:
            patch.setattr(Planner, "encode", panic)
            reply = call(server, "POST", "/v1/completions", body)
        assert (reply.status, reply.json["error"]["type"]) == (500, "InternalServerError")
        assert reply.json["error"]["message"] == "assertion failed"
        assert complete(server, body) == 200
    assert [each.getMessage() for each in caplog.records] == ["POST /v1/completions failed"]


def complete(server: TestServer, body: dict[str, object]) -> int:
    return call(server, "POST", "/v1/completions", body).status
