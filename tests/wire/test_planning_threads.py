"""Which replies are planned beside the event loop: long ones, and not those of usual load tests."""

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": None},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": None},
    "/v1/responses": {"input": "hello", "max_output_tokens": None},
}
"""Body of each route; None stands for the length of the reply."""


@pytest.fixture
def server() -> Iterator[TestServer]:
    with running_server(max_model_len=None, speed=math.inf) as server:
        yield server


def planned_on_a_thread(server: TestServer, path: str, body: dict[str, Any]) -> bool:
    """Whether the reply to a request, which must be there, was planned on a thread that began for it."""
    before = set(threading.enumerate())
    reply = call(server, "POST", path, {"model": "m", "ignore_eos": True, **body})
    assert reply.status == 200, reply
    return any(each.name.endswith("work") for each in set(threading.enumerate()) - before)


@pytest.mark.parametrize(("num_prompts", "is_beside"), [(5, False), (100, True)])
def test_many_replies_of_one_request_are_planned_on_a_thread(
    server: TestServer, num_prompts: int, is_beside: bool
) -> None:
    body = {"prompt": ["hello"] * num_prompts, "max_tokens": 128}
    assert planned_on_a_thread(server, "/v1/completions", body) is is_beside


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("num_tokens", "is_beside"), [(128, False), (20_000, True)])
def test_only_long_replies_of_a_set_length_are_planned_on_a_thread(
    server: TestServer, path: str, num_tokens: int, is_beside: bool
) -> None:
    body = {name: num_tokens if value is None else value for name, value in ROUTES[path].items()}
    assert planned_on_a_thread(server, path, body) is is_beside
