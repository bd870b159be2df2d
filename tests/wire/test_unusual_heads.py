"""Requests whose heads few clients send: old versions, no host, fields said twice, and the last of a connection."""

import socket

import pytest

from tests.patience import PATIENCE_S
from tests.wire.plain_http import raw_completion, read_all, read_until
from tests.wire.serving import TestServer


@pytest.mark.parametrize("stays", [b"", b"Connection: keep-alive\r\n"])
def test_a_client_of_an_old_version_sees_where_a_stream_ends(server: TestServer, stays: bytes) -> None:
    asked = raw_completion("1.0", prompt="hello there", max_tokens=2, stream=True)
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(asked.replace(b"\r\n\r\n", b"\r\n" + stays + b"\r\n"))
        assert read_all(connection).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/version", "/nowhere", "/v1/completions"])
@pytest.mark.parametrize(
    "fields", [b"", b"Connection: close\r\n", b"Host: x\r\nUser-Agent: a\r\nUser-Agent: b\r\nConnection: close\r\n"]
)
def test_heads_that_strict_servers_refuse_are_accepted(server: TestServer, path: str, fields: bytes) -> None:
    """Health checks of load balancers name no host, and more than one field comes twice from some clients."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), fields))
        status = {"/version": b"200", "/nowhere": b"404", "/v1/completions": b"405"}[path]
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 " + status)
        if b"close" in fields:
            assert read_all(connection) == b""


def test_bytes_after_the_last_request_of_a_connection_are_not_read(server: TestServer) -> None:
    asked = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(asked + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b'{"version":"0.33.0"}')
