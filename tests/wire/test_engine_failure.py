"""When the engine breaks nobody is left waiting, and when it refuses the client hears why."""

from dataclasses import dataclass

import pytest

from engine.batch_shape import BatchShape
from engine.units import Micros
from tests.fakes import TestLatency
from tests.wire.plain_http import call, complete, events_of
from tests.wire.serving import running_server


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
            assert error == (
                '{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}'
            )
            assert done == "[DONE]"
        else:
            assert reply.status == 500
            assert reply.json["error"]["type"] == "InternalServerError"
        assert call(server, "GET", "/health").status == 503
        assert call(server, "GET", "/ping").status == 503
        assert complete(server, max_tokens=1).status == 500


def test_other_routes_outlive_the_engine() -> None:
    with running_server(BreakingLatency()) as server:
        complete(server, max_tokens=20, ignore_eos=True)
        assert call(server, "GET", "/v1/models").status == 200
        assert call(server, "GET", "/metrics").status == 200
