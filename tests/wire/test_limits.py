"""Limits of a connection: the size of a head, the size of a body, requests ahead, and time."""

import gzip
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fakes import TestLatency
from tests.patience import PATIENCE_S
from tests.wire.plain_http import raw_completion, read_all, read_until, wait_for_metric
from tests.wire.serving import TestServer, running_server
from tests.wire.test_server_process import ask_for_stream, connect, process

REFUSED = b"HTTP/1.1 400 Bad Request\r\n"
INVALID = b"\r\n\r\nInvalid HTTP request received."
BODY = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1}).encode()


@pytest.fixture(scope="module")
def limited() -> Iterator[TestServer]:
    limits = {"h11_max_header_count": 20, "h11_max_incomplete_event_size": 1000, "max_body_mb": 1}
    with running_server(TestLatency(step_us=1000), **limits) as running:
        yield running


def opened(server: TestServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=PATIENCE_S)


def answered(server: TestServer, data: bytes) -> bytes:
    """Send `data` and return all bytes until the server closes the connection."""
    with opened(server) as connection:
        connection.sendall(data)
        return read_all(connection)


def get(path: str = "/version", head: bytes = b"") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode() + head + b"\r\n"


def post(length: int, body: bytes, head: bytes = b"") -> bytes:
    start = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return start + b"Content-Length: %d\r\n" % length + head + b"\r\n" + body


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(head=b"X-Long: " + b"a" * 1001 + b"\r\n"),
        get(path="/version?" + "a" * 1001),
        get(head=b"".join(b"X-%d: a\r\n" % number for number in range(20))),
        b"\x16\x03\x01\x02\x00 hello\r\n\r\n",
        b"FOO /version HTTP/1.1\r\nHost: x\r\n\r\n",
        post(-5, BODY),
        post(len(BODY), BODY, b"Content-Length: 3\r\n"),
        post(len(BODY), BODY, b"Transfer-Encoding: chunked\r\n"),
    ],
    ids=["long header", "long path", "many headers", "junk", "no method", "negative", "two lengths", "two framings"],
)
def test_a_head_that_is_too_large_or_none_is_refused_in_one_line(limited: TestServer, request_bytes: bytes) -> None:
    reply = answered(limited, request_bytes)
    assert reply.startswith(REFUSED)
    assert reply.endswith(INVALID)


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(head=b"X-Long: " + b"a" * 900 + b"\r\n"),
        get(path="/version?" + "a" * 900),
        get(head=b"".join(b"X-%d: a\r\n" % number for number in range(17))),
    ],
    ids=["header", "path", "headers"],
)
def test_a_head_within_the_limits_is_fine(limited: TestServer, request_bytes: bytes) -> None:
    assert answered(limited, request_bytes).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_with_a_length_beyond_the_limit_is_refused_before_it_is_sent(limited: TestServer) -> None:
    with opened(limited) as connection:
        connection.sendall(post(2**40, b"{"))
        reply = read_until(connection, b"}}")
    assert reply.startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == 413


def test_a_body_that_grows_too_large_is_refused(limited: TestServer) -> None:
    start = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    )
    with opened(limited) as connection:
        connection.sendall(start + b"\r\n" + 17 * (b"10000\r\n" + b" " * 2**16 + b"\r\n"))
        assert read_until(connection, b"}}").startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")


def test_a_body_is_not_unpacked(limited: TestServer) -> None:
    packed = gzip.compress(BODY)
    reply = answered(limited, post(len(packed), packed, b"Content-Encoding: gzip\r\n"))
    assert reply.startswith(REFUSED)
    assert reply.endswith(b'{"detail":"There was an error parsing the body"}')


@pytest.mark.parametrize("sent", [b"GET /version HTTP/1.1\r\nHost: x\r\n", b"GET /vers"])
def test_the_rest_of_a_head_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    with running_server() as server:
        assert answered(server, sent) == b""


def test_requests_sent_ahead_wait_with_the_client() -> None:
    """The server does not read what comes after some requests, so the kernel's buffers fill up and the client cannot
    send more."""
    ahead = 64 * raw_completion(prompt="hello", max_tokens=1, padding="x" * 60_000)
    with running_server(TestLatency(step_us=20_000), speed=1.0) as server, opened(server) as connection:
        connection.sendall(raw_completion(prompt="hello", max_tokens=2000, ignore_eos=True, stream=True))
        read_until(connection, b"data: ")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(20 * ahead)
        connection.close()
        wait_for_metric(server, "vllm:num_requests_running", 0)


def wait_until_answered(line: str) -> None:
    """Ask until there is an answer: connections of a flood are taken, and found closed, one after the other."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with connect(line) as later:
                later.sendall(get())
                reply = read_all(later)  # nothing from a connection that was taken only to be closed
                if reply:
                    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
                    return
                assert time.monotonic() < deadline
        except ConnectionError:
            assert time.monotonic() < deadline


def test_a_flood_of_connections_harms_no_present_client() -> None:
    with process("--port", "0") as (running, line), connect(line) as stream, ExitStack() as flood:
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (100, 100))
        ask_for_stream(stream, 200)
        for _ in range(200):
            flood.enter_context(connect(line))
        assert b"[DONE]" in read_until(stream, b"[DONE]")
        flood.close()
        wait_until_answered(line)
