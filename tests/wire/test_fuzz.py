"""Random bytes: the server answers or disconnects, its engine becomes empty, and it keeps serving."""

import json
import re
import socket
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mockserve.protocol.completions import ChatCompletionRequest, CompletionRequest
from tests.examples import examples
from tests.patience import PATIENCE_S, wait_until
from tests.wire.internal_errors import is_vllms_own_error
from tests.wire.plain_http import call
from tests.wire.serving import TestServer

"""Longer than this nothing may take."""

QUIET_S = 0.1
"""Silence after which a reply counts as complete."""

quick = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)

BODIES = (
    {"model": "m", "prompt": "hello there", "max_tokens": 5, "stream": True},
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "n": 2, "logprobs": True},
)
PATHS = ("/v1/completions", "/v1/chat/completions")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def message(path: str, body: bytes, extra: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + extra + b"\r\n" + body


def exchange(server: TestServer, pieces: list[bytes], says_goodbye: bool) -> bytes:
    """Send pieces and read until the server has hung up, or for as long as it goes on talking."""
    received = b""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            if says_goodbye:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(QUIET_S)
            while data := connection.recv(65536):
                received += data
        except OSError:  # the connection is closed, or silent
            pass
    return received


def is_well(server: TestServer) -> bool:
    """Whether the engine is empty again and the server answers."""
    wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests, "the engine is not empty")
    return call(server, "GET", "/health").status == 200


def statuses(received: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.\d (\d{3}) ", received)]


@quick
@given(st.sampled_from(range(2)), st.data())
def test_a_request_with_broken_bytes_is_survived(server: TestServer, which: int, data: st.DataObject) -> None:
    sent = bytearray(message(PATHS[which], json.dumps(BODIES[which]).encode()))
    for place in data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=4)):
        sent[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    middle = data.draw(st.integers(0, cut))
    received = exchange(server, [bytes(sent[:middle]), bytes(sent[middle:cut])], says_goodbye=data.draw(st.booleans()))
    assert all(status < 500 for status in statuses(received))
    assert is_well(server)


@quick
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_survived(server: TestServer, sent: bytes, says_goodbye: bool) -> None:
    assert all(status < 500 for status in statuses(exchange(server, [sent], says_goodbye)))
    assert is_well(server)


@quick
@given(st.sampled_from(PATHS), st.dictionaries(st.text(max_size=12), json_values, max_size=5), json_values)
def test_any_json_is_answered(server: TestServer, path: str, body: dict[str, Any], value: Any) -> None:
    for fields in (body, {**BODIES[PATHS.index(path)], **body}, {**body, "prompt": value, "messages": value}):
        reply = call(server, "POST", path, json.dumps(fields).encode())
        assert reply.status < 500, reply.body
    assert is_well(server)


@quick
@given(st.data())
def test_any_value_of_any_field_is_answered(server: TestServer, data: st.DataObject) -> None:
    which = data.draw(st.sampled_from(range(2)))
    names = sorted((CompletionRequest, ChatCompletionRequest)[which].model_fields)
    odd = data.draw(st.dictionaries(st.sampled_from(names), json_values, min_size=1, max_size=4))
    odd["n"] = data.draw(st.integers(-2, 3))
    reply = call(server, "POST", PATHS[which], json.dumps({**BODIES[which], **odd}).encode())
    assert reply.status < 500 or is_vllms_own_error(odd, reply.body), (odd, reply.body)
    assert is_well(server)


@quick
@given(st.lists(st.tuples(st.from_regex(rb"[A-Za-z-]{1,20}", fullmatch=True), st.binary(max_size=40)), max_size=6))
def test_any_headers_are_survived(server: TestServer, headers: list[tuple[bytes, bytes]]) -> None:
    extra = b"".join(name + b": " + value.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n" for name, value in headers)
    received = exchange(server, [message(PATHS[0], json.dumps(BODIES[0]).encode(), extra)], says_goodbye=False)
    assert all(status < 500 for status in statuses(received))
    assert is_well(server)


def test_requests_one_after_the_other_on_one_connection_are_all_answered(server: TestServer) -> None:
    body = json.dumps({**BODIES[0], "stream": False}).encode()
    received = exchange(server, [message(PATHS[0], body) * 5], says_goodbye=False)
    assert statuses(received) == [200] * 5


def test_a_body_that_never_comes_holds_nothing(server: TestServer) -> None:
    sent = message(PATHS[0], b"x" * 1000)[:-500]
    received = exchange(server, [sent], says_goodbye=False)
    assert statuses(received) == []
    assert is_well(server)
