"""Simple requests bypass aiohttp: replies are equal, however the bytes are split."""

import gc
import re
import socket
import time
from collections.abc import Iterator
from itertools import permutations

import pytest

from mockserve.reply.reply import Reply
from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import raw_completion, read_all, read_until, wait_for_metric
from tests.wire.serving import TestServer, running_server

ODD = b"\r\nX-Odd:\ta\r\n"
"""A valid field that the simple parser leaves to aiohttp."""
END_OF_STREAM = b"data: [DONE]\n\n\r\n0\r\n\r\n"
LONGER_THAN_PATIENCE_S = 0.05


def post(path: str, body: bytes, head: bytes = b"") -> bytes:
    fields = b"Host: x\r\nContent-Type: application/json\r\nX-Request-Id: r\r\n" + head
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), fields, len(body), body)


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


ASKED = b'"model":"m","temperature":0,"max_tokens":3,"ignore_eos":true'
PROMPT, MESSAGES = b'{"prompt":"hi",' + ASKED, b'{"messages":[{"role":"user","content":"hi"}],' + ASKED
STREAMED, WHOLE = post("/v1/completions", PROMPT + b',"stream":true}'), post("/v1/completions", PROMPT + b"}")
NOWHERE, HEAD = get("/nowhere"), get("/version", "HEAD")
REQUESTS = {
    "streamed completion": STREAMED,
    "whole completion": WHOLE,
    "streamed chat": post("/v1/chat/completions", MESSAGES + b',"stream":true}'),
    "whole chat": post("/v1/chat/completions", MESSAGES + b"}"),
    "a browser's": post("/v1/completions", PROMPT + b',"stream":true}', b"Origin: http://a.example\r\n"),
    "a fault": post("/v1/completions", PROMPT + b"}", b"X-Blis-Fault: 503\r\n"),
    "no JSON": post("/v1/completions", b"{"),
    "nothing": post("/v1/completions", b""),
    "wrong field": post("/v1/completions", b'{"prompt":1.5}'),
    "wrong model": post("/v1/completions", b'{"prompt":"a","model":"x"}'),
    "wrong media type": post("/v1/completions", b"{}").replace(b"application/json", b"text/plain"),
    "tokens": post("/tokenize", b'{"prompt":"hi"}'),
    "health": get("/health"),
    "models": get("/v1/models"),
    "a query": get("/server_info?config_format=json"),
    "a path that is not there": NOWHERE,
    "a method that is not there": get("/v1/completions"),
    "a slash too many": get("/v1/models/"),
    "a head": HEAD,
}


@pytest.fixture
def connection(server: TestServer) -> Iterator[socket.socket]:
    with opened(server) as connection:
        yield connection


def opened(server: TestServer) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def reply_to(connection: socket.socket, request: bytes) -> bytes:
    """One reply, without what differs from second to second."""
    received = read_until(connection, b"\r\n\r\n")
    head, _, _ = received.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        while not received.endswith(END_OF_STREAM):
            received += connection.recv(65536)
    elif not request.startswith(b"HEAD"):
        (length,) = re.findall(rb"content-length: (\d+)", head)
        while len(received) < len(head) + 4 + int(length):
            received += connection.recv(65536)
    return timeless(received)


def timeless(reply: bytes) -> bytes:
    return re.sub(rb'"created":\d+|date: [^\r]*|"id":"modelperm[^"]*"', b"", reply)


def answer(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return reply_to(connection, request)


def odd(request: bytes) -> bytes:
    return request.replace(b"\r\n", ODD, 1)


@pytest.mark.parametrize("name", REQUESTS)
def test_both_readers_of_requests_give_equal_replies(server: TestServer, name: str) -> None:
    with opened(server) as ours, opened(server) as of_library:
        for _ in range(2):
            assert answer(ours, REQUESTS[name]) == answer(of_library, odd(REQUESTS[name]))


@pytest.mark.parametrize("request_bytes", [STREAMED, NOWHERE, odd(WHOLE)], ids=["usual", "lent", "odd"])
def test_a_request_may_come_in_two_parts_cut_anywhere(connection: socket.socket, request_bytes: bytes) -> None:
    expected = answer(connection, request_bytes)
    for size in range(1, len(request_bytes)):
        connection.sendall(request_bytes[:size])
        time.sleep(LONGER_THAN_PATIENCE_S if size % 40 == 0 and not size % 3 else 0.0005)
        assert answer(connection, request_bytes[size:])[-100:] == expected[-100:]


def test_a_body_may_come_in_many_parts(connection: socket.socket) -> None:
    expected = answer(connection, STREAMED)
    for place in range(0, len(STREAMED) - 3, 3):
        connection.sendall(STREAMED[place : place + 3])
        time.sleep(0.0005)
    assert answer(connection, STREAMED[place + 3 :]) == expected


def test_a_head_alone_is_answered_if_that_is_enough(connection: socket.socket) -> None:
    head = post("/nowhere", b"12345")[:-5]
    assert answer(connection, head).startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer(connection, b"12345" + NOWHERE).startswith(b"HTTP/1.1 404 Not Found\r\n")


@pytest.mark.parametrize("order", list(permutations([STREAMED, NOWHERE, HEAD, odd(WHOLE)])))
def test_requests_of_any_kind_sent_at_once_are_answered_in_their_order(
    server: TestServer, order: tuple[bytes, ...]
) -> None:
    with opened(server) as one, opened(server) as other:
        one.sendall(b"".join(order))
        expected = b"".join(answer(other, each) for each in order)
        received = b""
        while len(timeless(received)) < len(expected):
            received += one.recv(65536)
    assert timeless(received) == expected


def test_many_requests_sent_ahead_are_all_answered(connection: socket.socket) -> None:
    one = answer(connection, STREAMED)
    padded = STREAMED.replace(b"X-Request-Id", b"X-Padding: " + 2000 * b"a" + b"\r\nX-Request-Id")
    connection.sendall(100 * padded)
    received = b""
    while received.count(END_OF_STREAM) < 100:
        received += connection.recv(65536)
    assert timeless(received) == 100 * one


def test_a_leaver_with_requests_ahead_leaves_nothing_behind() -> None:
    with running_server(TestLatency(step_us=20_000), speed=1.0) as server:
        with opened(server) as connection:
            connection.sendall(5 * raw_completion(prompt="a", max_tokens=2000, ignore_eos=True, stream=True))
            read_until(connection, b"data: ")
        wait_for_metric(server, "vllm:num_requests_running", 0)
        wait_until(lambda: not server.service.delivery.open_replies.number)


@pytest.mark.parametrize("first", [STREAMED, NOWHERE, odd(WHOLE)], ids=["usual", "lent", "odd"])
@pytest.mark.parametrize("sent", [b"", STREAMED[:40]], ids=["nothing", "half a head"])
def test_a_connection_that_is_idle_for_too_long_is_closed(
    monkeypatch: pytest.MonkeyPatch, first: bytes, sent: bytes
) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    with running_server() as server, opened(server) as connection:
        connection.sendall(first + sent)
        reply_to(connection, first)
        assert read_all(connection) == b""


def test_a_connection_without_a_request_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    with running_server() as server, opened(server) as connection:
        time.sleep(1.5)
        assert answer(connection, STREAMED).endswith(END_OF_STREAM)


@pytest.mark.parametrize("first", [STREAMED, NOWHERE, odd(WHOLE)], ids=["usual", "lent", "odd"])
def test_a_connection_with_a_sent_head_is_not_idle(monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    with running_server() as server, opened(server) as connection:
        connection.sendall(first + STREAMED[:-1])
        reply_to(connection, first)
        time.sleep(1.5)
        assert answer(connection, STREAMED[-1:]).endswith(END_OF_STREAM)


def test_a_stream_may_be_longer_than_an_idle_connection_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1")
    with running_server(TestLatency(step_us=600_000), speed=1.0) as server, opened(server) as connection:
        # All at once: a client that waits for one reply before the next request may be idle for long on a busy machine.
        connection.sendall(2 * (NOWHERE + STREAMED))
        received = b""
        while received.count(END_OF_STREAM) < 2:
            data = connection.recv(65536)
            assert data, received
            received += data


@pytest.mark.slow
def test_a_reply_that_has_ended_leaves_nothing_for_the_collector(connection: socket.socket) -> None:
    gc.collect()
    gc.disable()
    try:
        for request in (STREAMED, WHOLE, REQUESTS["streamed chat"], REQUESTS["whole chat"]) * 5:
            answer(connection, request)
        answer(connection, NOWHERE)
        # The thread of the server may still be about to leave what made the last reply.
        wait_until(lambda: not any(isinstance(each, Reply) for each in gc.get_objects()), "a reply is left")
    finally:
        gc.enable()
