"""A client that does not read its stream is cut and its request is freed, without effect on other clients."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import metric, raw_completion, read_until, wait_for_metric
from tests.wire.serving import TestServer, running_server

MANY_TOKENS = 30_000
"""With their log-probabilities more than kernels keep for a connection."""


@pytest.fixture(scope="module")
def strict_server() -> Iterator[TestServer]:
    with running_server(TestLatency(step_us=1000), max_unsent_kib=64, max_model_len=32_768) as running:
        yield running


def ask(server: TestServer, stream: bool = True, **fields: Any) -> socket.socket:
    """A connection that keeps little for its client, over which a completion has been asked for."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect((server.host, server.port))
    connection.sendall(raw_completion(prompt="hello there", stream=stream, ignore_eos=True, **fields))
    return connection


def test_a_client_that_never_reads_is_cut_and_its_request_freed(strict_server: TestServer) -> None:
    cut = metric(strict_server, "blis_slow_readers_cut_total")
    with ask(strict_server, max_tokens=MANY_TOKENS, logprobs=5):
        wait_for_metric(strict_server, "blis_slow_readers_cut_total", cut + 1)
        wait_for_metric(strict_server, "vllm:num_requests_running", 0)
        wait_for_metric(strict_server, "vllm:kv_cache_usage_perc", 0)
    wait_until(lambda: not strict_server.service.delivery.driver.num_unfinished_requests)


def test_a_reading_client_gets_everything_beside_one_that_does_not(strict_server: TestServer) -> None:
    with ask(strict_server, max_tokens=MANY_TOKENS, logprobs=5), ask(strict_server, max_tokens=3000) as reader:
        assert read_until(reader, b"[DONE]").count(b"data: ") == 3001
    wait_for_metric(strict_server, "vllm:num_requests_running", 0)


def test_a_client_that_reads_late_but_not_too_late_gets_everything(strict_server: TestServer) -> None:
    cut = metric(strict_server, "blis_slow_readers_cut_total")
    done = metric(strict_server, "vllm:request_success_total", finished_reason="length")
    with ask(strict_server, max_tokens=100) as late:
        wait_for_metric(strict_server, "vllm:request_success_total", done + 1, finished_reason="length")
        assert read_until(late, b"[DONE]").count(b"data: ") == 101
    assert metric(strict_server, "blis_slow_readers_cut_total") == cut
