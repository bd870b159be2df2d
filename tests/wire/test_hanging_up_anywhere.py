"""Clients disconnect at any point: within a request, between two requests, in the middle of a reply."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import raw_completion, wait_for_metric
from tests.wire.serving import TestServer, running_server

RESET = struct.pack("ii", 1, 0)
"""Linger option that resets the connection on close, as if the client was killed with bytes unread."""


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(TestLatency(step_us=2000), speed=1.0, max_num_seqs=4) as running:
        yield running


_requests = st.builds(
    raw_completion,
    version=st.sampled_from(["1.1", "1.1", "1.0"]),
    prompt=st.sampled_from(["hello", "hello " * 200]),
    stream=st.booleans(),
    max_tokens=st.integers(1, 12),
    n=st.integers(1, 3),
    ignore_eos=st.just(True),
)


def leave(connection: socket.socket, resets: bool) -> None:
    if resets:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def read_some(connection: socket.socket, num_bytes: int) -> None:
    """Return so many bytes, or as many as there are to come soon."""
    connection.settimeout(0.05)
    try:
        while num_bytes > 0 and (data := connection.recv(num_bytes)):
            num_bytes -= len(data)
    except (TimeoutError, ConnectionResetError):
        pass


def assert_nothing_is_left(server: TestServer) -> None:
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        wait_for_metric(server, f"vllm:{name}", 0)
    wait_until(
        lambda: (
            not server.service.delivery.open_replies.number
            and not server.service.delivery.driver.num_unfinished_requests
        ),
        "a reply is still being made",
    )


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    requests=st.lists(_requests, min_size=1, max_size=3),
    sent=st.floats(0, 1),
    num_read=st.sampled_from([0, 0, 1, 100, 300, 1000, 3000, 10_000]),
    resets=st.booleans(),
)
def test_a_leaver_leaves_nothing_behind(
    server: TestServer, requests: list[bytes], sent: float, num_read: int, resets: bool
) -> None:
    """All requests are sent ahead on one connection, the last one perhaps in part."""
    data = b"".join(requests)
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
    connection.sendall(data[: round(sent * len(data))])
    read_some(connection, num_read)
    leave(connection, resets)
    assert_nothing_is_left(server)


@pytest.mark.parametrize("resets", [False, True])
def test_many_clients_that_leave_together_leave_nothing_behind(server: TestServer, resets: bool) -> None:
    fields: dict[str, Any] = {"prompt": "hello", "max_tokens": 500, "ignore_eos": True, "stream": True}
    connections = [socket.create_connection((server.host, server.port), timeout=PATIENCE_S) for _ in range(200)]
    for connection in connections:
        connection.sendall(raw_completion(**fields))
    wait_for_metric(server, "vllm:num_requests_running", 4)
    for connection in connections:
        leave(connection, resets)
    assert_nothing_is_left(server)
