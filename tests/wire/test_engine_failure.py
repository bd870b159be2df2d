"""When the engine breaks nobody is left waiting, and when it refuses the client hears why."""

import json
from dataclasses import dataclass

import pytest

from engine.batch_shape import BatchShape
from engine.units import Micros
from tests.fakes import TestLatency
from tests.wire.plain_http import call, chat, complete, events_of
from tests.wire.serving import running_server

DEAD = {
    "message": "The server had an error while processing your request.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
"""What vLLM's clients hear of a dead engine."""


@dataclass(frozen=True, slots=True)
class BreakingLatency(TestLatency):
    """Raises once a request has this much context."""

    breaks_at_tokens: int = 6

    def step_time(self, shape: BatchShape) -> Micros:
        if shape.decode_context_tokens >= self.breaks_at_tokens:
            raise ArithmeticError("out of numbers")
        return self.step_us


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_breaks_ends_open_replies_and_health(stream: bool) -> None:
    with running_server(BreakingLatency()) as server:
        reply = complete(server, max_tokens=20, ignore_eos=True, stream=stream)
        if stream:
            *_, error, done = events_of(reply.body)
            assert json.loads(error) == {"error": DEAD}
            assert done == "[DONE]"
        else:
            assert reply.status == 500
            assert reply.json["error"] == DEAD
        assert call(server, "GET", "/health").status == 503
        assert call(server, "GET", "/ping").status == 503
        for later in (complete(server, max_tokens=1, stream=stream), chat(server, stream=stream)):
            assert (later.status, later.json) == (500, {"error": DEAD})


def test_other_routes_outlive_the_engine() -> None:
    with running_server(BreakingLatency()) as server:
        complete(server, max_tokens=20, ignore_eos=True)
        assert call(server, "GET", "/v1/models").status == 200
        assert call(server, "GET", "/metrics").status == 200


def test_pooling_requests_end_with_the_engine() -> None:
    with running_server(BreakingLatency(breaks_at_tokens=0), runner="pooling") as server:
        for _ in range(2):
            reply = call(server, "POST", "/v1/embeddings", {"model": "m", "input": "hello there"})
            assert (reply.status, reply.json) == (500, {"error": DEAD})
