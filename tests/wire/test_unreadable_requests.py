"""Requests with an invalid HTTP body or a rare HTTP version each get an answer."""

import json
import socket

import pytest

from tests.patience import PATIENCE_S
from tests.wire.plain_http import read_all, read_until
from tests.wire.serving import TestServer, running_server

TYPED = b"Host: x\r\nContent-Type: application/json\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n" % TYPED
BODY = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 2}).encode()
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
REFUSAL = b"Invalid HTTP request received."


@pytest.mark.parametrize(
    "rest",
    [b"zz\r\n", b"-1\r\nx\r\n", CHUNK + b"xyz\r\n", CHUNK + b"0\r\nContent-Length: 3\r\n\r\n", b"5\r\nab\r\n0\r\n\r\n"],
)
def test_refuses_a_body_whose_chunks_are_broken(
    server: TestServer, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(CHUNKED)
        read_until(connection, b"100 Continue\r\n\r\n")  # from here on the handler waits for the body
        connection.sendall(rest)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received.endswith(REFUSAL)
    assert not caplog.records


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2.0"])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/health"])
def test_answers_in_http_1_1_whatever_version_is_named(server: TestServer, version: bytes, path: bytes) -> None:
    head = b"POST %b %b\r\n%bContent-Length: %d\r\n\r\n" % (path, version, TYPED, len(BODY))
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head + BODY)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n" if path == b"/v1/completions" else b"HTTP/1.1 405 ")
    assert b"\r\nconnection: close\r\n" in received.lower()


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2.0"])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/messages"])
def test_streams_until_it_hangs_up_for_other_versions(server: TestServer, version: bytes, path: bytes) -> None:
    asked = {
        "model": "m",
        "max_tokens": 2,
        "stream": True,
        "prompt": "a",
        "messages": [{"role": "user", "content": "a"}],
    }
    body = json.dumps(asked).encode()
    head = b"POST %b %b\r\n%bContent-Length: %d\r\n\r\n" % (path, version, TYPED, len(body))
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head + body)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    end = b"data: [DONE]\n\n" if path == b"/v1/completions" else b'{"type":"message_stop"}\n\n'
    assert received.endswith(end + b"\r\n0\r\n\r\n" if version == b"HTTP/2.0" else end)


def test_embeds_as_bytes_for_a_client_of_http_1_0() -> None:
    body = json.dumps({"input": ["a", "b"], "encoding_format": "bytes_only"}).encode()
    head = b"POST /v1/embeddings HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n" % (TYPED, len(body))
    with (
        running_server(runner="pooling", convert="embed", hf_overrides='{"hidden_size": 8}') as pooling,
        socket.create_connection((pooling.host, pooling.port), timeout=PATIENCE_S) as connection,
    ):
        connection.sendall(head + body)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(received.partition(b"\r\n\r\n")[2]) == 2 * 8 * 4


@pytest.mark.parametrize(("sent", "read"), [(b"\xff\xfe", "\xff\xfe"), (b"\xc3\xa9", "\xc3\xa9")])
def test_reads_header_fields_as_latin_1(server: TestServer, sent: bytes, read: str) -> None:
    named = b"X-Request-Id: %b\r\nX-data-parallel-rank: \xd9\xa3\r\nConnection: close\r\n" % sent
    head = b"POST /v1/completions HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n" % (TYPED, named, len(BODY))
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head + BODY)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f'"id":"cmpl-{read}"'.encode() in received
