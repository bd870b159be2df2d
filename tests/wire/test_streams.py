"""Streams: framing, connections, and equal content of streamed and complete replies."""

import http.client
import json
import socket
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.wire.plain_http import (
    call,
    call_on,
    chat,
    chunks_of,
    complete,
    events_of,
    open_request,
    raw_completion,
    read_all,
    read_until,
)
from tests.wire.serving import TestServer


def streamed_text(body: bytes, index: int = 0) -> str:
    """The text of one choice of a completion or chat stream."""
    choices = [choice for chunk in chunks_of(body) for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 50, "ignore_eos": True},
        {"max_tokens": 400},
        {"max_tokens": 400, "min_tokens": 100},
        {"max_tokens": 60, "stop": ["the", "and"]},
        {"max_tokens": 60, "stop": "no such words"},
        {"max_tokens": 60, "stop": ["."], "include_stop_str_in_output": True, "min_tokens": 10},
    ],
)
def test_a_stream_has_the_content_of_the_whole_reply(server: TestServer, fields: dict[str, Any]) -> None:
    whole = complete(server, seed=7, **fields).json
    stream = chunks_of(complete(server, seed=7, stream=True, stream_options={"include_usage": True}, **fields).body)
    last = stream[-2]["choices"][0]
    choice = whole["choices"][0]
    assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == choice["text"]
    assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
    assert stream[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_each_choice_has_a_text_of_its_own(server: TestServer) -> None:
    whole = chat(server, seed=7, n=3, max_tokens=20).json
    stream = chat(server, seed=7, n=3, max_tokens=20, stream=True).body
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [streamed_text(stream, index) for index in range(3)] == texts
    assert len(set(texts)) == 3


def test_equal_seeds_give_equal_text_and_no_seed_another(server: TestServer) -> None:
    seeded = {complete(server, seed=3).json["choices"][0]["text"] for _ in range(3)}
    greedy = {complete(server, temperature=0).json["choices"][0]["text"] for _ in range(3)}
    free = {complete(server).json["choices"][0]["text"] for _ in range(3)}
    assert (len(seeded), len(greedy), len(free)) == (1, 1, 3)


def test_a_stop_string_ends_the_text_before_it(server: TestServer) -> None:
    text = complete(server, seed=5, max_tokens=40, ignore_eos=True).json["choices"][0]["text"]
    stop = text.split()[10]
    reply = complete(server, seed=5, max_tokens=40, ignore_eos=True, stop=[stop]).json
    assert reply["choices"][0]["text"] == text[: text.index(stop)]
    assert (reply["choices"][0]["finish_reason"], reply["choices"][0]["stop_reason"]) == ("stop", stop)
    assert reply["usage"]["completion_tokens"] < 40


def test_every_event_is_a_chunk_of_its_own(server: TestServer) -> None:
    with open_request(server, max_tokens=3, stream=True) as connection:
        received = read_until(connection, b"\r\n0\r\n\r\n")
    rest = received.partition(b"\r\n\r\n")[2]
    chunks = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            break
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert len(chunks) == 4
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)


def test_a_connection_serves_streams_and_whole_replies_in_turn(server: TestServer) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    for stream in (True, False, True):
        reply = call_on(connection, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 4, "stream": stream})
        assert reply.status == 200
        assert reply.body.endswith(b"data: [DONE]\n\n") == stream
    connection.close()


def test_an_http_1_0_client_gets_the_stream_unchunked(server: TestServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(raw_completion("1.0", prompt="hello", max_tokens=3, stream=True))
        received = read_all(connection)
    headers, _, events = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert len(events_of(events)) == 4


def test_a_chat_turn_that_repeats_the_last_answer_finds_it_in_the_cache(server: TestServer) -> None:
    question = {"role": "user", "content": "tell me a story about the sea " * 20}
    counters = server.service.delivery.driver.engine
    first = chat(server, messages=[question], max_tokens=64, ignore_eos=True).json
    answer = first["choices"][0]["message"]
    hits = counters.stats.prefix_hit_tokens
    second = chat(server, messages=[question, answer, {"role": "user", "content": "go on"}], max_tokens=1).json
    first_length = first["usage"]["prompt_tokens"] + 64
    gained = counters.stats.prefix_hit_tokens - hits
    assert first_length - 16 - 1 <= gained <= second["usage"]["prompt_tokens"]
    assert gained > first["usage"]["prompt_tokens"]


def test_prompts_under_different_salts_share_nothing(server: TestServer) -> None:
    engine = server.service.delivery.driver.engine
    prompt = "salted water and fresh water " * 30
    complete(server, prompt=prompt, max_tokens=1, cache_salt="one")
    hits = engine.stats.prefix_hit_tokens
    complete(server, prompt=prompt, max_tokens=1, cache_salt="two")
    assert engine.stats.prefix_hit_tokens == hits
    complete(server, prompt=prompt, max_tokens=1, cache_salt="one")
    assert engine.stats.prefix_hit_tokens > hits


def test_names_with_quotes_and_umlauts_survive(server: TestServer) -> None:
    body = {"prompt": "a", "max_tokens": 2, "stream": True, "request_id": 'ü"\\u0000\n'}
    events = events_of(complete(server, **body).body)
    assert {json.loads(each)["id"] for each in events[:-1]} == {'cmpl-ü"\\u0000\n'}


LATE: tuple[dict[str, Any], ...] = (
    {"logit_bias": {"99999999": 1}},
    {"stop_token_ids": [99999999]},
    {"allowed_token_ids": []},
    {"bad_words": [" "]},
    {"structured_outputs": {"regex": "(("}},
    {"structured_outputs": {"json": {"properties": 5}}},
)
"""Mistakes that vLLM finds only after it has sent the head of a stream."""


@pytest.mark.parametrize("fields", LATE)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_mistake_found_late_is_an_event_of_the_stream(server: TestServer, path: str, fields: dict[str, Any]) -> None:
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    whole = call(server, "POST", path, {**asked, **fields})
    streamed = call(server, "POST", path, {**asked, **fields, "stream": True})
    assert (whole.status, streamed.status) == (400, 200)
    assert chunks_of(streamed.body) == [whole.json]


@pytest.mark.parametrize("fields", [{"max_tokens": 5000}, {"temperature": 3}, {"structured_outputs": {}}, {"n": 0}])
def test_a_mistake_found_early_has_a_status(server: TestServer, fields: dict[str, Any]) -> None:
    assert complete(server, stream=True, **fields).status == 400


def test_an_unknown_engine_and_an_unknown_token_are_found_late(server: TestServer) -> None:
    for body, headers in (({"prompt": [99999999]}, {}), ({"prompt": "a"}, {"X-data-parallel-rank": "7"})):
        reply = call(server, "POST", "/v1/completions", {**body, "stream": True}, headers)
        assert reply.status == 200
        assert [each["error"]["code"] for each in chunks_of(reply.body)] == [400]


def test_an_anthropic_stream_reports_a_late_mistake_as_an_error_event(server: TestServer) -> None:
    form = {"format": {"type": "json_schema", "schema": {"properties": 5}}}
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "output_config": form}
    whole = call(server, "POST", "/v1/messages", asked)
    streamed = call(server, "POST", "/v1/messages", {**asked, "stream": True})
    assert (whole.status, streamed.status) == (400, 200)
    assert streamed.body == b"event: error\ndata: " + whole.body + b"\n\n"
