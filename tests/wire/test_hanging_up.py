"""A disconnecting client frees its slot and its KV blocks at once."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.fakes import TestLatency
from tests.patience import wait_until
from tests.wire.plain_http import complete, metric, open_request, read_until, wait_for_metric
from tests.wire.serving import TestServer, running_server

SLOW_STEP_US = 100_000
"""A reply of 2,000 tokens takes longer than a test waits for what leaving frees."""


@pytest.fixture(scope="module")
def slow_server() -> Iterator[TestServer]:
    """In real time, one request at a time."""
    with running_server(TestLatency(step_us=SLOW_STEP_US), speed=1.0, max_num_seqs=1) as running:
        yield running


def send(server: TestServer, stream: bool) -> socket.socket:
    """A connection with a long request under way."""
    return open_request(server, stream=stream, max_tokens=2000, ignore_eos=True)


def assert_all_is_free(server: TestServer) -> None:
    wait_for_metric(server, "vllm:num_requests_running", 0)
    wait_for_metric(server, "vllm:num_requests_waiting", 0)
    wait_for_metric(server, "vllm:kv_cache_usage_perc", 0)
    wait_until(lambda: not server.service.delivery.driver.num_unfinished_requests)


def test_leaving_in_the_middle_of_a_stream_frees_the_request(slow_server: TestServer) -> None:
    connection = send(slow_server, stream=True)
    read_until(connection, b"data: ")
    assert metric(slow_server, "vllm:num_requests_running") == 1
    connection.close()
    assert_all_is_free(slow_server)


def test_leaving_before_the_reply_frees_a_request_without_a_stream(slow_server: TestServer) -> None:
    connection = send(slow_server, stream=False)
    wait_for_metric(slow_server, "vllm:num_requests_running", 1)
    connection.close()
    assert_all_is_free(slow_server)


def test_leaving_while_waiting_frees_the_place_in_the_queue(slow_server: TestServer) -> None:
    running = send(slow_server, stream=True)
    read_until(running, b"data: ")
    waiting = send(slow_server, stream=True)
    wait_for_metric(slow_server, "vllm:num_requests_waiting", 1)
    waiting.close()
    wait_for_metric(slow_server, "vllm:num_requests_waiting", 0)
    assert metric(slow_server, "vllm:num_requests_running") == 1
    running.close()
    assert_all_is_free(slow_server)


def test_a_reset_connection_counts_as_leaving(slow_server: TestServer) -> None:
    connection = send(slow_server, stream=True)
    read_until(connection, b"data: ")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    assert_all_is_free(slow_server)


def test_a_waiting_caller_is_admitted_when_another_leaves(slow_server: TestServer) -> None:
    leaving = send(slow_server, stream=True)
    read_until(leaving, b"data: ")
    staying = send(slow_server, stream=True)
    wait_for_metric(slow_server, "vllm:num_requests_waiting", 1)
    leaving.close()
    assert b"data: " in read_until(staying, b"data: ")
    staying.close()
    assert_all_is_free(slow_server)


def test_leaving_does_not_count_as_a_finished_request(slow_server: TestServer) -> None:
    before = metric(slow_server, "vllm:request_success_total", finished_reason="abort")
    latencies = metric(slow_server, "vllm:e2e_request_latency_seconds_count")
    connection = send(slow_server, stream=True)
    read_until(connection, b"data: ")
    connection.close()
    assert_all_is_free(slow_server)
    assert metric(slow_server, "vllm:request_success_total", finished_reason="abort") == before
    assert metric(slow_server, "vllm:e2e_request_latency_seconds_count") == latencies


def test_leaving_after_the_last_token_disturbs_no_other_stream(slow_server: TestServer) -> None:
    for _ in range(3):
        with open_request(slow_server, max_tokens=1, stream=True) as connection:
            read_until(connection, b"[DONE]")
    time.sleep(0.01)
    assert complete(slow_server, max_tokens=1).status == 200
    assert_all_is_free(slow_server)
