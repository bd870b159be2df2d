"""`--middleware` around the server, over sockets."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.engines import deployment_of
from mockserve.listening import start
from mockserve.options.serve import ServeOptions
from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.serving import TestServer, running_server

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

MODULE = "tests.wings.asgi.middleware_of_a_user"
CHAT = {"model": "alias", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    paths = (f"{MODULE}.Renaming", f"{MODULE}.guarding", f"{MODULE}:Stamping")
    with running_server(middleware=paths, api_key=("k",), max_body_mb=1) as found:
        yield found


def talk(server: TestServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[bytes, bytes]:
    """Head and body of a reply on a connection that ends with it."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "h", "connection": "close", "content-type": "application/json", "authorization": "Bearer k"}
    fields |= {"content-length": str(len(data)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join(lines).encode() + data)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def test_classes_see_and_change_what_passes_and_the_last_one_is_outermost(server: TestServer) -> None:
    head, body = talk(server, "POST", "/my/chat", CHAT)
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"x-stamp: /my/chat" in head
    assert head.count(b"server: uvicorn") == 1
    assert json.loads(body)["usage"]["completion_tokens"] == 5
    head, _ = talk(server, "GET", "/v1/models", authorization="Bearer wrong")
    assert head.startswith(b"HTTP/1.1 401 Unauthorized")
    assert b"x-stamp: /v1/models" in head
    assert talk(server, "HEAD", "/health")[1] == b""
    assert talk(server, "GET", "/nothing")[0].startswith(b"HTTP/1.1 404")


def test_a_function_may_answer_itself_and_its_mistakes_are_status_500(server: TestServer) -> None:
    head, body = talk(server, "POST", "/my/chat", CHAT, x_refused="1")
    assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 418 I'm a Teapot", b"refused")
    head, body = talk(server, "GET", "/health", x_broken="1")
    assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 500 Internal Server Error", b"Internal Server Error")
    assert talk(server, "GET", "/health")[0].startswith(b"HTTP/1.1 200")


def test_streams_come_as_they_are_made_and_large_bodies_pass(server: TestServer) -> None:
    head, body = talk(server, "POST", "/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 30})
    assert b"transfer-encoding: chunked" in head.lower()
    assert body.count(b"data: ") >= 30
    assert b"data: [DONE]" in body
    large = {**CHAT, "user": "x" * 400_000}
    assert talk(server, "POST", "/v1/chat/completions", large)[0].startswith(b"HTTP/1.1 200")
    assert talk(server, "POST", "/v1/chat/completions", b"x" * (2**20 + 1))[0].startswith(b"HTTP/1.1 413")


def test_a_client_that_hangs_up_frees_its_request() -> None:
    """Of a server whose reply would take six minutes, which is more than this test waits."""
    body = json.dumps({**CHAT, "model": "m", "stream": True, "max_tokens": 1900}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: h", "authorization: Bearer k"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    with running_server(TestLatency(step_us=200_000), speed=1.0, middleware=(f"{MODULE}:Stamping",)) as server:
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            connection.sendall("\r\n".join(lines).encode() + body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            assert server.service.delivery.driver.num_unfinished_requests == 1
        wait_until(lambda: server.service.delivery.driver.num_unfinished_requests == 0)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nope", "--middleware must be an import path such as package.module.Class, got 'nope'"),
        ("no.such.module", "--middleware no.such.module cannot be imported: ModuleNotFoundError"),
        (f"{MODULE}.missing", f"--middleware {MODULE}.missing cannot be imported: AttributeError"),
        (f"{MODULE}.unusable", f"--middleware {MODULE}.unusable must be a class or a coroutine function, got 7"),
    ],
)
def test_invalid_middleware_is_refused_at_start(path: str, problem: str) -> None:
    options = options_from(ServeOptions, model="qwen/qwen3-14b", port=0, host="127.0.0.1", middleware=(path,))
    with pytest.raises(OptionError, match=problem.replace("(", r"\(")):
        asyncio.run(start(options, deployment_of(options)))
