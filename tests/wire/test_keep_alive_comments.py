"""`--sse-keep-alive-interval`: comments in streams that are quiet, as vLLM sends them."""

import json
import socket
from contextlib import suppress

import pytest

from tests.fakes import TestLatency
from tests.patience import PATIENCE_S
from tests.wire.instances import SLOW
from tests.wire.plain_http import call, events_of, open_request, raw_completion, read_until
from tests.wire.serving import TestServer, running_server

COMMENT = b": keep-alive\n\n"
IN_A_CHUNK = b"e\r\n" + COMMENT + b"\r\n"


def all_for_now(connection: socket.socket) -> bytes:
    """Return the bytes that come until none do for as long as the connection waits."""
    received = b""
    with suppress(TimeoutError):
        while data := connection.recv(65536):
            received += data
    return received


def comments_before_anything(connection: socket.socket, number: int) -> bytes:
    """Return the bytes that have come with so many of them, and nothing else so far."""
    received = b""
    while received.count(COMMENT) < number:
        received += read_until(connection, COMMENT)
    return received


@pytest.mark.parametrize("instances", [1, 2])
def test_a_stream_that_waits_for_its_first_token_gets_a_comment_each_interval(instances: int) -> None:
    with running_server(SLOW, speed=1.0, num_instances=instances, sse_keep_alive_interval=1) as server:
        with open_request(server, stream=True) as connection:
            received = comments_before_anything(connection, 2)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body == 2 * IN_A_CHUNK


def test_comments_over_http_1_0_have_no_chunks() -> None:
    with running_server(SLOW, speed=1.0, sse_keep_alive_interval=1) as server:
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(raw_completion("1.0", prompt="hello", stream=True))
            body = comments_before_anything(connection, 1).partition(b"\r\n\r\n")[2]
        assert body == COMMENT


def test_a_stream_with_frequent_tokens_gets_no_comments() -> None:
    body = {"model": "m", "prompt": "hello", "stream": True, "max_tokens": 25, "ignore_eos": True}
    with running_server(TestLatency(step_us=100_000), speed=1.0, sse_keep_alive_interval=2) as server:
        reply = call(server, "POST", "/v1/completions", body).body
        assert COMMENT not in reply
        assert len(events_of(reply)) == 26


def answer_of(server: TestServer) -> str:
    import openai  # takes a second, in each process that collects this file

    client = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], stream=True, max_tokens=2
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_clients_ignore_comments() -> None:
    with running_server(sse_keep_alive_interval=1) as server:
        plain = answer_of(server)
    with running_server(TestLatency(step_us=1_500_000), speed=1.0, sse_keep_alive_interval=1) as server:
        assert answer_of(server) == plain


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", {"max_tokens": 5}), ("/v1/responses", {"input": "hello"})])
def test_other_apis_send_no_comments(path: str, body: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "m", "messages": messages, "stream": True, **body}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with running_server(SLOW, speed=1.0, sse_keep_alive_interval=1) as server:
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode() + data)
            received = read_until(connection, b" 200 OK\r\n")
            connection.settimeout(1.5)
            received += all_for_now(connection)
        assert COMMENT not in received


def test_a_stream_of_token_ids_gets_no_comments() -> None:
    slow = TestLatency(step_us=1_500_000)
    with running_server(slow, speed=1.0, sse_keep_alive_interval=1, enable_scale_out=True) as server:
        body = {"token_ids": [5], "sampling_params": {"max_tokens": 1, "ignore_eos": True}, "stream": True}
        reply = call(server, "POST", "/inference/v1/generate", body).body
    assert COMMENT not in reply
    assert len(events_of(reply)) == 2
