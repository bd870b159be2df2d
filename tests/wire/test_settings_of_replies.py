"""Settings of replies that act on every interface: roles, names of tokens, tokens per event, latencies."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call, chat, chunks_of, complete, events_of
from tests.wire.serving import TestServer, running_server

INTERVAL = 4
NUM_TOKENS = 12
TIMES = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def settled() -> Iterator[TestServer]:
    settings: dict[str, Any] = {"stream_interval": INTERVAL, "response_role": "bot"}
    with running_server(**settings, return_tokens_as_token_ids=True, enable_per_request_metrics=True) as running:
        yield running


def typed_events(server: TestServer, path: str, **body: Any) -> list[Any]:
    reply = call(server, "POST", path, {"model": "m", "stream": True, **body})
    return [json.loads(each.partition("\ndata: ")[2]) for each in events_of(reply.body)]


def respond(server: TestServer, **fields: Any) -> list[Any]:
    return typed_events(server, "/v1/responses", input="hi", max_output_tokens=NUM_TOKENS, ignore_eos=True, **fields)


def sizes(server: TestServer, texts: list[str]) -> list[int]:
    """The number of tokens of each text, as the server counts them together."""
    counts = [
        call(server, "POST", "/tokenize", {"prompt": "".join(texts[: number + 1])}).json["count"]
        for number in range(len(texts))
    ]
    return [count - before for count, before in zip(counts, [0, *counts], strict=False)]


def test_an_event_of_a_response_has_as_many_tokens_as_one_of_a_chat(settled: TestServer) -> None:
    events = respond(settled)
    texts = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert sizes(settled, texts) == [1, INTERVAL, INTERVAL, NUM_TOKENS - 1 - 2 * INTERVAL]


def test_an_event_of_a_message_has_as_many_tokens_as_one_of_a_chat(settled: TestServer) -> None:
    body = {"messages": [USER], "max_tokens": 9, "temperature": 0}
    texts = [
        each["delta"]["text"]
        for each in typed_events(settled, "/v1/messages", **body)
        if each["type"] == "content_block_delta"
    ]
    found = sizes(settled, texts)
    assert found[:2] == [1, INTERVAL]
    assert max(found) == INTERVAL


def test_the_last_event_of_a_response_has_the_latencies_of_a_whole_reply(settled: TestServer) -> None:
    metrics = respond(settled)[-1]["response"]["metrics"]
    assert list(metrics) == [*TIMES, "speculative_decoding"]
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / (NUM_TOKENS - 1))
    whole = call(settled, "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3}).json
    assert list(whole["metrics"]) == list(metrics)


@pytest.mark.parametrize("ask", [chat, complete])
def test_one_token_has_no_time_between_tokens(settled: TestServer, ask: Any) -> None:
    metrics = ask(settled, max_tokens=1, ignore_eos=True).json["metrics"]
    assert metrics["mean_itl_ms"] is None
    assert metrics["generation_time_ms"] == 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = chunks_of(ask(settled, max_tokens=1, ignore_eos=True, **options).body)[-1]["metrics"]
    assert set(streamed) == set(TIMES) - {"mean_itl_ms"}


def test_names_of_tokens_by_id_have_their_own_bytes_in_responses(settled: TestServer) -> None:
    asked = {"input": "hi", "max_output_tokens": 2, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    whole = call(settled, "POST", "/v1/responses", {"model": "m", **asked}).json
    for token in whole["output"][0]["content"][0]["logprobs"]:
        for each in (token, *token["top_logprobs"]):
            assert each["token"].startswith("token_id:")
            assert bytes(each["bytes"]).decode() == each["token"]


def test_answers_have_the_role_of_the_server(settled: TestServer) -> None:
    assert chat(settled).json["choices"][0]["message"]["role"] == "bot"
    assert chunks_of(chat(settled, stream=True).body)[0]["choices"][0]["delta"]["role"] == "bot"
    batch = call(settled, "POST", "/v1/chat/completions/batch", {"messages": [[USER]], "max_tokens": 2}).json
    assert batch["choices"][0]["message"]["role"] == "bot"


def test_an_answer_that_continues_a_message_has_its_role(settled: TestServer) -> None:
    said = {"role": "narrator", "content": "Once"}
    body = {"messages": [USER, said], "add_generation_prompt": False, "echo": True, "max_tokens": 3}
    message = call(settled, "POST", "/v1/chat/completions", body).json["choices"][0]["message"]
    assert message["role"] == "narrator"
    assert message["content"].startswith("Once")


def test_only_a_message_of_the_role_of_the_server_is_repeated(settled: TestServer) -> None:
    for role, is_repeated in (("assistant", False), ("bot", True)):
        body = {"messages": [USER, {"role": role, "content": "Once"}], "echo": True, "max_tokens": 3}
        message = call(settled, "POST", "/v1/chat/completions", body).json["choices"][0]["message"]
        assert message["content"].startswith("Once") is is_repeated


def test_a_response_and_a_message_keep_the_role_assistant(settled: TestServer) -> None:
    response = call(settled, "POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3}).json
    assert response["output"][0]["role"] == "assistant"
    asked = {"model": "m", "messages": [USER], "max_tokens": 3}
    assert call(settled, "POST", "/v1/messages", asked).json["role"] == "assistant"


def test_without_statistics_the_page_has_no_figures_of_vllm() -> None:
    with running_server(disable_log_stats=True, enable_auto_tool_choice=True, tool_call_parser="hermes") as server:
        complete(server)
        page = call(server, "GET", "/metrics").body.decode()
        assert server.service.metrics_source.stat_log is None  # type: ignore[attr-defined]
    assert "vllm:" not in page
    assert "http_requests_total{" in page
    assert "process_cpu_seconds_total" in page
    assert "python_info" in page
