"""The comparison with a genuine server that says the same words: what it asks, and what it calls a difference."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import running_server
from workshop.vllm_oracle.equal_words.clients import CLIENTS, drawn_requests
from workshop.vllm_oracle.equal_words.compared import found_differences
from workshop.vllm_oracle.replies import HttpReply

JSON = {"content-type": "application/json"}
STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def reply(body: Any, headers: Mapping[str, str] = JSON, status: int = 200) -> HttpReply:
    return HttpReply(status, headers, json.dumps(body))


def stream(*deltas: Mapping[str, Any], **more: Any) -> HttpReply:
    chunks = [{"id": "chatcmpl-0123456789abcdef", "choices": [{"index": 0, "delta": each, **more}]} for each in deltas]
    return HttpReply(200, STREAM, "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n")


def said(*texts: str, **more: Any) -> HttpReply:
    return stream(*({"content": text} for text in texts), **more)


def ended(texts: list[str], last: str) -> HttpReply:
    """A stream whose last event may say something, too."""
    end = {"index": 0, "delta": {"content": last} if last else {}, "finish_reason": "stop"}
    body = said(*texts).body.removesuffix("data: [DONE]\n\n")
    return HttpReply(200, STREAM, f"{body}data: {json.dumps({'choices': [end]})}\n\ndata: [DONE]\n\n")


def part(arguments: str) -> Mapping[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (reply({"id": "cmpl-0123456789abcdef", "created": 5}), reply({"id": "cmpl-fedcba9876543210", "created": 7})),
        (reply({"logprob": -0.5}), reply({"logprob": -0.7})),
        (reply({"top_logprobs": [{" a": -1.0, " b": -2.0}]}), reply({"top_logprobs": [{" a": -0.5, " c": -3.0}]})),
        (said("a", "b"), said("ab")),
        (stream(part("{"), part("}")), stream(part("{}"))),
        (ended(["a", "b"], ""), ended(["a"], "b")),
        (said("a", "b", token_ids=None), said("ab", token_ids=None)),
    ],
)
def test_what_cannot_be_equal_is_no_difference(theirs: HttpReply, ours: HttpReply) -> None:
    assert found_differences(theirs, ours) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "place"),
    [
        (reply({"a": 1}), reply({"a": 1}, status=400), "status"),
        (reply({}, {**JSON, "vary": "Origin"}), reply({}), "header vary"),
        (reply({"a": None}), reply({}), ".a"),
        (reply({"a": 1, "b": 2}), reply({"b": 2, "a": 1}), " order"),
        (reply({"n": 1}), reply({"n": True}), ".n"),
        (reply({"created": 5}), reply({"created": None}), ".created"),
        (said("a", "b"), said("a", "c"), "[0][1]"),
        (said("a"), stream({"content": "a"}, {}), " length"),
        (said("a", token_ids=[5]), said("a", token_ids=[6]), "[0][2].token_ids[0]"),
        (stream({"role": "assistant", "content": ""}), said(""), "[0]"),
        (said("a", finish_reason="stop"), said("a", finish_reason="length"), ".choices[0].finish_reason"),
    ],
)
def test_anything_else_is_one(theirs: HttpReply, ours: HttpReply, place: str) -> None:
    (found, *_) = found_differences(theirs, ours)
    assert place in found.partition(":")[0]


def test_equal_seeds_draw_equal_requests_of_every_client() -> None:
    requests = list(drawn_requests(3, 100))
    assert requests == list(drawn_requests(3, 100))
    assert requests != list(drawn_requests(4, 100))
    assert {each.client for each in requests} == set(CLIENTS)
    without = {each.client for each in drawn_requests(3, 100, offers_tools=False)}
    assert without == {each for each in CLIENTS if not each.startswith("agent")}
    assert len({each.mark for each in requests}) == 100
    assert all(each.asked in json.dumps(each.body) for each in requests)


def test_our_server_takes_every_request() -> None:
    with running_server(enable_auto_tool_choice=True, tool_call_parser="hermes", max_model_len=4096) as server:
        statuses = {
            call(server, "POST", each.path, {**each.body, "stream": False, "stream_options": None}).status
            for each in drawn_requests(5, 40)
        }
    assert statuses == {200}
