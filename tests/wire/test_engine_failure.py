"""A failed engine ends all waiting requests, and an error message gives the reason."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency
from tests.wire.plain_http import call, chat, complete, open_request, read_until, wait_for_metric
from tests.wire.serving import TestServer, running_server

DEAD = {
    "message": "The server had an error while processing your request.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
"""vLLM's error for a dead engine."""


@dataclass(frozen=True, slots=True)
class BreakingLatency(TestLatency):
    """Raises once it is switched on."""

    breaks: threading.Event = field(default_factory=threading.Event)

    def step_time(self, shape: BatchShape) -> Micros:
        if self.breaks.is_set():
            raise ArithmeticError("out of numbers")
        return self.step_us


@pytest.fixture
def latency() -> BreakingLatency:
    """Real time passes between its steps, so that there is enough of it to make the engine break."""
    return BreakingLatency(step_us=10_000)


LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}


def assert_is_dead(server: TestServer, stream: bool) -> None:
    assert call(server, "GET", "/health").status == 503
    assert call(server, "GET", "/ping").status == 503
    for later in (complete(server, max_tokens=1, stream=stream), chat(server, stream=stream)):
        assert (later.status, later.json) == (500, {"error": DEAD})
    asked = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "stream": stream}
    message = call(server, "POST", "/v1/messages", asked)
    dead = {"type": "error", "error": {"type": "api_error", "message": DEAD["message"]}}
    assert (message.status, message.json) == (500, dead)


def test_an_engine_that_breaks_ends_open_streams_and_health(latency: BreakingLatency) -> None:
    with running_server(latency, speed=1.0) as server, open_request(server, stream=True, **LONG) as connection:
        read_until(connection, b"data: ")
        latency.breaks.set()
        events = read_until(connection, b"data: [DONE]").decode().split("data: ")
        assert json.loads(events[-2].partition("\n")[0]) == {"error": DEAD}
        assert_is_dead(server, stream=True)


def test_an_engine_that_breaks_ends_open_replies_and_health(latency: BreakingLatency) -> None:
    with running_server(latency, speed=1.0) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(complete, server, **LONG)
        wait_for_metric(server, "vllm:num_requests_running", 1)
        latency.breaks.set()
        reply = waiting.result()
        assert (reply.status, reply.json) == (500, {"error": DEAD})
        assert_is_dead(server, stream=False)


def test_other_routes_outlive_the_engine(latency: BreakingLatency) -> None:
    latency.breaks.set()
    with running_server(latency) as server:
        assert complete(server, max_tokens=20, ignore_eos=True).status == 500
        assert call(server, "GET", "/v1/models").status == 200
        assert call(server, "GET", "/metrics").status == 200


def test_pooling_requests_end_with_the_engine(latency: BreakingLatency) -> None:
    latency.breaks.set()
    with running_server(latency, runner="pooling") as server:
        for _ in range(2):
            reply = call(server, "POST", "/v1/embeddings", {"model": "m", "input": "hello there"})
            assert (reply.status, reply.json) == (500, {"error": DEAD})
