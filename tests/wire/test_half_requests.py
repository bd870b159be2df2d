"""Incomplete requests: the server waits for a limited time, even if single bytes keep arriving."""

import socket
import time

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
FORM = (
    b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x"
)
LIMIT_S = 1
MOST_S = 8.0


def received_bytes(server: TestServer, beginning: bytes, trickle: bytes) -> bytes:
    """Return the bytes that a client gets which goes on sending single bytes, until its connection is closed."""
    until_s = time.monotonic() + MOST_S
    received = b""
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(beginning)
        connection.settimeout(0.1)
        while time.monotonic() < until_s:
            try:
                data = connection.recv(65536)
                if not data:
                    return received
                received += data
            except TimeoutError:
                if trickle and not received:
                    connection.sendall(trickle)
            except ConnectionResetError:
                return received
            if received.startswith(b"HTTP/1.1 408") and received.endswith(b"}}"):
                return received
    raise AssertionError(f"the connection is still open, with {received!r}")


@pytest.mark.parametrize("trickle", [b"", b" "], ids=["silence", "trickle"])
@pytest.mark.parametrize(
    "beginning",
    [
        HEAD % b"/v1/completions" + b"Content-Length: 1000\r\n\r\n{",
        HEAD % b"/v1/chat/completions" + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n{",
        HEAD % b"/tokenize" + b"Content-Length: 20000000\r\n\r\n{",
        HEAD % b"/invocations" + b"Content-Length: 1000\r\n\r\n{",
        FORM % b"/v1/audio/transcriptions",
    ],
    ids=["length", "chunked", "large", "invocations", "form"],
)
def test_the_rest_of_a_body_is_not_waited_for_long(beginning: bytes, trickle: bytes) -> None:
    with running_server(request_receive_timeout=LIMIT_S, task=("generate", "transcription")) as server:
        assert received_bytes(server, beginning, trickle).startswith(b"HTTP/1.1 408 ")
        assert call(server, "GET", "/health").status == 200


def test_a_connection_that_brings_nothing_is_closed() -> None:
    with running_server(request_receive_timeout=LIMIT_S) as server:
        assert received_bytes(server, b"", b"") == b""


def test_a_connection_that_has_been_used_stays_open_as_long_as_others() -> None:
    with (
        running_server(request_receive_timeout=LIMIT_S) as server,
        socket.create_connection((server.host, server.port)) as connection,
    ):
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(0.9)
