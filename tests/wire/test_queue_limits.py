"""Limits of the queue: each prompt of a request takes a place, on every interface."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import TestLatency
from tests.wire.plain_http import call, complete, events_of, metric, open_request, wait_for_metric
from tests.wire.serving import TestServer, running_server

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
LIMITED: dict[str, Any] = {"max_num_seqs": 1, "max_num_queued_reqs": 1, "enable_scale_out": True}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def limited() -> Iterator[TestServer]:
    with running_server(**LIMITED) as running:
        yield running


def rejections(server: TestServer) -> float:
    return metric(server, "vllm:admission_rejections_total", reason="max_num_queued_reqs")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["hi", "yo"]}),
        ("/v1/completions", {"prompt": [[5], [6], [7]]}),
        ("/v1/completions", {"prompt": ["hi"], "n": 2}),
        ("/v1/chat/completions/batch", {"messages": [[USER], [USER]]}),
    ],
)
def test_more_prompts_than_places_are_refused_on_an_idle_engine(limited: TestServer, path: str, body: Any) -> None:
    before = rejections(limited)
    reply = call(limited, "POST", path, {"model": "m", **body})
    assert (reply.status, reply.json["error"]["message"]) == (503, BUSY)
    assert reply.json["error"]["type"] == "Service Unavailable"
    assert rejections(limited) == before + 1


def test_a_single_prompt_has_its_place(limited: TestServer) -> None:
    assert complete(limited, prompt=["hi"], max_tokens=2).status == 200


def test_the_stream_of_several_prompts_has_begun_when_one_is_refused(limited: TestServer) -> None:
    reply = complete(limited, prompt=["hi", "yo"], stream=True)
    event, end = events_of(reply.body)
    assert reply.status == 200
    assert BUSY in event
    assert end == "[DONE]"


def test_prompts_of_one_request_count_for_those_behind_them() -> None:
    with running_server(max_num_queued_tokens=5) as server:
        assert complete(server, prompt=[[5] * 9], max_tokens=1).status == 200
        assert complete(server, prompt=[[5] * 4, [6]], max_tokens=1).status == 200
        assert complete(server, prompt=[[5] * 5, [6]], max_tokens=1).status == 503


def test_texts_to_embed_take_places_too() -> None:
    with running_server(runner="pooling", max_num_queued_reqs=2) as server:
        statuses = [
            call(server, "POST", "/v1/embeddings", {"model": "m", "input": ["a"] * number}).status for number in (2, 3)
        ]
    assert statuses == [200, 503]


@pytest.mark.parametrize("streams", [False, True])
def test_token_ids_are_refused_like_text_while_the_queue_is_full(streams: bool) -> None:
    slow = TestLatency(step_us=1_000_000)
    with running_server(slow, speed=1.0, **LIMITED) as server, open_request(server, stream=True, max_tokens=1000):
        wait_for_metric(server, "vllm:num_requests_running", 1)
        body = {"token_ids": [5], "sampling_params": {"max_tokens": 2}, "stream": streams}
        reply = call(server, "POST", "/inference/v1/generate", body)
        assert (reply.status, reply.json["error"]["message"]) == (503, BUSY)
        assert rejections(server) == 1
