"""Connections: API keys, CORS origins, root path, unix socket."""

import asyncio
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.engines import deployment_of
from mockserve.http.headers import PREFLIGHT_VARY, new_cors
from mockserve.listening import start
from mockserve.options.serve import ServeOptions
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

ORIGIN = "http://a.example"
BROWSER: dict[str, Any] = {
    "allowed_origins": (ORIGIN, "http://b.example"),
    "allowed_methods": ("GET", "POST"),
    "allowed_headers": ("X-One",),
    "allow_credentials": True,
}
ASKS = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}


@pytest.fixture(scope="module")
def proxied() -> Iterator[TestServer]:
    with running_server(root_path="/pre", api_key=("k1", "k2"), enable_request_id_headers=True, **BROWSER) as server:
        yield server


@pytest.mark.parametrize(
    ("given", "origin"),
    [({}, None), ({"Origin": ORIGIN}, ORIGIN), ({"Origin": "http://z.example"}, None)],
)
def test_an_allowed_origin_is_named_in_every_reply(
    proxied: TestServer, given: dict[str, str], origin: str | None
) -> None:
    for path in ("/health", "/nowhere", "/version"):
        headers = call(proxied, "GET", path, headers=given).headers
        assert headers.get("access-control-allow-origin") == origin
        assert headers.get("access-control-allow-credentials") == ("true" if given else None)
        assert headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({}, 200, b"OK"),
        ({"Access-Control-Request-Headers": "x-one, content-type"}, 200, b"OK"),
        ({"Access-Control-Request-Headers": "x-two"}, 400, b"Disallowed CORS headers"),
        ({"Access-Control-Request-Private-Network": "true"}, 400, b"Disallowed CORS private-network"),
        (
            {"Origin": "http://z.example", "Access-Control-Request-Method": "PUT",
             "Access-Control-Request-Headers": "x-two"},
            400,
            b"Disallowed CORS origin, method, headers",
        ),
    ],
)  # fmt: skip
def test_cors_preflight_is_answered(proxied: TestServer, asked: dict[str, str], status: int, text: bytes) -> None:
    reply = call(proxied, "OPTIONS", "/v1/models", headers={**ASKS, **asked})
    assert (reply.status, reply.body) == (status, text)
    expected = {
        "vary": PREFLIGHT_VARY,
        "access-control-allow-methods": "GET, POST",
        "access-control-max-age": "600",
        "access-control-allow-headers": "Accept, Accept-Language, Content-Language, Content-Type, X-One",
        "access-control-allow-credentials": "true",
        "content-type": "text/plain; charset=utf-8",
    }
    assert {name: reply.headers[name] for name in expected} == expected
    allowed = None if "Origin" in asked else ORIGIN
    assert reply.headers.get("access-control-allow-origin") == allowed


def test_replies_have_no_cors_headers_without_allowed_origins(server: TestServer) -> None:
    reply = call(server, "OPTIONS", "/v1/models", headers=ASKS)
    assert (reply.status, reply.body) == (400, b"Disallowed CORS origin")


def test_all_origins_are_a_star_unless_a_request_has_cookies() -> None:
    anyone = new_cors(["*"], ["*"], ["*"], credentials=False)
    assert anyone.reply_headers(ORIGIN) == {"Vary": "Origin", "Access-Control-Allow-Origin": "*"}
    with_cookies = new_cors(["*"], ["*"], ["*"], credentials=True)
    assert with_cookies.reply_headers(ORIGIN)["Access-Control-Allow-Origin"] == ORIGIN
    found = anyone.preflight({**ASKS, "Access-Control-Request-Headers": "x-any"})
    assert found is not None
    assert found[2]["Access-Control-Allow-Headers"] == "x-any"
    assert "QUERY" in found[2]["Access-Control-Allow-Methods"]


def test_options_without_origin_is_an_unknown_method(proxied: TestServer) -> None:
    reply = call(proxied, "OPTIONS", "/v1/models")
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/v1/models", "/pre/v1/models"])
def test_root_path_is_optional(proxied: TestServer, path: str) -> None:
    assert call(proxied, "GET", path, headers={"Authorization": "Bearer k2"}).status == 200
    assert call(proxied, "GET", path, headers={"Authorization": "bearer k1"}).status == 200
    refused = call(proxied, "GET", path, headers={"Authorization": "Bearer  k1", "Origin": ORIGIN})
    assert (refused.status, refused.json) == (401, {"error": "Unauthorized"})
    assert "vary" not in refused.headers
    assert "access-control-allow-origin" not in refused.headers


def test_root_path_is_stripped_once(proxied: TestServer) -> None:
    assert call(proxied, "GET", "/pre/pre/health").status == 404
    assert call(proxied, "GET", "/pre").status == 404


def test_replies_carry_the_id_of_the_request_or_a_new_one(proxied: TestServer) -> None:
    assert call(proxied, "GET", "/health", headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    assert call(proxied, "GET", "/v1/models", headers={"X-Request-Id": "q"}).headers["x-request-id"] == "q"
    new = [call(proxied, "GET", "/health").headers["x-request-id"] for _ in range(2)]
    assert new[0] != new[1]
    assert all(len(each) == 32 for each in new)


def test_request_ids_are_echoed_only_with_the_flag(server: TestServer) -> None:
    assert "x-request-id" not in call(server, "GET", "/health", headers={"X-Request-Id": "abc"}).headers


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with running_server() as server:
        assert call(server, "GET", "/v1/models").status == 401
        assert call(server, "GET", "/v1/models", headers={"Authorization": "Bearer secret"}).status == 200
    with running_server(api_key=("other",)) as server:
        assert call(server, "GET", "/v1/models", headers={"Authorization": "Bearer secret"}).status == 401


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock: Any = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def test_a_unix_socket_serves_and_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with running_server(uds=str(path)):
        connection = UnixConnection(str(path))
        connection.request("GET", "/version")
        assert connection.getresponse().read() == b'{"version":"0.33.0"}'
        connection.close()
    assert not path.exists()


def test_a_second_server_leaves_the_unix_socket_of_the_first_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with running_server(uds=path):
        options = options_from(ServeOptions, model="qwen/qwen3-14b", uds=path)
        with pytest.raises(OptionError, match=rf"^cannot listen on {path}: Address already in use$"):
            asyncio.run(start(options, deployment_of(options)))
        connection = UnixConnection(path)
        connection.request("GET", "/version")
        assert connection.getresponse().status == 200
        connection.close()
