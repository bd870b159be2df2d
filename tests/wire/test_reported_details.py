"""Details of a reply beside its text: log-probabilities, token ids, echoes, counts, latencies."""

import json
import math
from typing import Any

import pytest

from tests.wire.plain_http import call, chat, chunks_of, complete
from tests.wire.serving import TestServer, running_server

LOGPROBS = {"logprobs": True, "top_logprobs": 5}


def test_log_probabilities_of_chat_are_those_of_the_text(server: TestServer) -> None:
    reply = chat(server, max_tokens=20, ignore_eos=True, **LOGPROBS).json
    choice = reply["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in tokens) == choice["message"]["content"]
    for token in tokens:
        tops = {each["token"]: each["logprob"] for each in token["top_logprobs"]}
        assert sum(map(math.exp, tops.values())) <= 1
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(tops) == 5
        assert tops[token["token"]] == token["logprob"]


def test_a_stream_has_the_log_probabilities_of_the_whole_reply(server: TestServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "temperature": 0, **LOGPROBS}
    whole = chat(server, **fields).json["choices"][0]["logprobs"]["content"]
    streamed = [
        token
        for chunk in chunks_of(chat(server, stream=True, **fields).body)
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole


def test_offsets_of_a_completion_run_through_its_stream(server: TestServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logprobs": 2, "echo": True}
    whole = complete(server, **fields).json["choices"][0]
    offsets = [
        each
        for chunk in chunks_of(complete(server, stream=True, **fields).body)
        for each in chunk["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == whole["logprobs"]["text_offset"]
    assert whole["text"].startswith("hello there")
    for offset, token in zip(offsets, whole["logprobs"]["tokens"], strict=True):
        assert whole["text"][offset:].startswith(token)


@pytest.mark.parametrize("fields", [{"logprob_token_ids": [5, 6, 7], "logprobs": True}, {"logprobs": True}])
def test_at_most_the_requested_candidates_are_shown(server: TestServer, fields: dict[str, Any]) -> None:
    token = chat(server, max_tokens=1, **fields).json["choices"][0]["logprobs"]["content"][0]
    wanted = fields.get("logprob_token_ids", [])
    assert len(token["top_logprobs"]) == (len(wanted) + 1 if wanted else 0)
    assert sum(math.exp(each["logprob"]) for each in token["top_logprobs"]) <= 1


def test_the_log_probabilities_of_a_prompt_follow_its_tokens(server: TestServer) -> None:
    reply = chat(server, max_tokens=1, prompt_logprobs=3, return_token_ids=True).json
    ids = reply["prompt_token_ids"]
    assert len(ids) == reply["usage"]["prompt_tokens"] == len(reply["prompt_logprobs"])
    assert reply["prompt_logprobs"][0] is None
    for token_id, entry in zip(ids[1:], reply["prompt_logprobs"][1:], strict=True):
        assert next(iter(entry)) == str(token_id)
        assert 3 <= len(entry) <= 4


def test_token_ids_of_a_stream_add_up_to_those_of_the_reply(server: TestServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 9, "temperature": 0, "return_token_ids": True, "stop": ["zz"]}
    whole = complete(server, **fields).json
    chunks = chunks_of(complete(server, stream=True, **fields).body)
    streamed = [each for chunk in chunks for each in chunk["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]
    assert len(streamed) == whole["usage"]["completion_tokens"]
    assert [chunk["choices"][0]["prompt_token_ids"] is not None for chunk in chunks] == [True] + [False] * (
        len(chunks) - 1
    )


def test_an_answer_that_continues_a_message_may_repeat_it(server: TestServer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]
    fields: dict[str, Any] = {"messages": messages, "echo": True, "max_tokens": 3, "temperature": 0}
    fields |= {"add_generation_prompt": False, "continue_final_message": True}
    whole = chat(server, **fields).json["choices"][0]["message"]["content"]
    chunks = chunks_of(chat(server, stream=True, **fields).body)
    assert whole.startswith("Sure, ")
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole


def test_chunks_have_as_many_tokens_as_the_stream_interval(server: TestServer) -> None:
    reply = complete(server, max_tokens=8, ignore_eos=True, stream=True, stream_interval=3, return_token_ids=True)
    assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks_of(reply.body)] == [1, 3, 3, 1]


@pytest.mark.parametrize(("num_beams", "asked", "num_shown"), [(1, 1, 2), (1, 4, 2), (2, 1, 2), (2, 2, 3), (2, 5, 4)])
def test_a_beam_shows_candidates_among_twice_as_many_as_beams(
    server: TestServer, num_beams: int, asked: int, num_shown: int
) -> None:
    body = {"prompt": "hi", "max_tokens": 30, "ignore_eos": True, "n": num_beams, "use_beam_search": True}
    choices = call(server, "POST", "/v1/completions", {**body, "logprobs": asked}).json["choices"]
    assert len(choices) == num_beams
    for choice in choices:
        assert {len(each) for each in choice["logprobs"]["top_logprobs"]} == {num_shown}
        for shown in choice["logprobs"]["top_logprobs"]:
            assert list(shown.values()) == sorted(shown.values(), reverse=True)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_beams_have_no_details_of_the_prompt(path: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"prompt": "hi"} if path == "/v1/completions" else {"messages": messages}
    body |= {"max_tokens": 2, "n": 2}
    with running_server(enable_prompt_tokens_details=True) as server:
        assert call(server, "POST", path, body).json["usage"]["prompt_tokens_details"] is not None
        reply = call(server, "POST", path, {**body, "use_beam_search": True})
        assert reply.json["usage"]["prompt_tokens_details"] is None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("limit", [0, -1, -5])
def test_beams_without_room_for_a_token_are_one_empty_choice(server: TestServer, path: str, limit: int) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"prompt": "hi"} if path == "/v1/completions" else {"messages": messages}
    found = call(server, "POST", path, {**body, "max_tokens": limit, "n": 2, "use_beam_search": True}).json
    (choice,) = found["choices"]
    text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    assert (text, choice["finish_reason"], found["usage"]["completion_tokens"]) == ("", "length", 0)


def test_beams_come_whole(server: TestServer) -> None:
    reply = chat(server, max_tokens=4, n=2, temperature=0, use_beam_search=True, stream=True)
    contents = [chunk["choices"][0]["delta"]["content"] for chunk in chunks_of(reply.body)]
    assert [bool(each) for each in contents] == [False, False, True, True]


def test_a_repeated_prompt_is_reported_as_cached() -> None:
    prompt = list(range(1000, 1070))
    with running_server(enable_prompt_tokens_details=True) as server:
        details = [complete(server, prompt=prompt).json["usage"]["prompt_tokens_details"] for _ in range(2)]
        salted = complete(server, prompt=prompt, cache_salt="other").json["usage"]["prompt_tokens_details"]
        chunks = chunks_of(complete(server, prompt=prompt, stream=True, stream_options={"include_usage": True}).body)
    assert [each["cached_tokens"] for each in details] == [0, 64]
    assert salted["cached_tokens"] == 0
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}


def test_a_prompt_with_requested_log_probabilities_is_computed_anew() -> None:
    prompt = list(range(1000, 1070))
    with running_server(enable_prompt_tokens_details=True) as server:
        complete(server, prompt=prompt)
        reply = complete(server, prompt=prompt, prompt_logprobs=0).json
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_latencies_are_those_of_the_simulated_request() -> None:
    with running_server(enable_per_request_metrics=True) as server:
        alone = complete(server, max_tokens=11, ignore_eos=True).json["metrics"]
        several = complete(server, max_tokens=2, n=2).json["metrics"]
    assert alone["time_to_first_token_ms"] == 1.0
    assert alone["generation_time_ms"] == 10.0
    assert alone["mean_itl_ms"] == 1.0
    assert round(alone["tokens_per_second"], 6) == 1000.0
    assert several is None


def test_media_count_as_many_tokens_as_the_server_reports() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "what is this?"}

    def tokens(server: TestServer, *parts: Any) -> Any:
        reply = chat(server, messages=[{"role": "user", "content": list(parts)}], max_tokens=1)
        return reply.json["usage"]

    with running_server(tokens_per_medium=100, enable_prompt_tokens_details=True) as server:
        plain, one, two = tokens(server, text), tokens(server, text, picture), tokens(server, picture, text, picture)
    assert 100 <= one["prompt_tokens"] - plain["prompt_tokens"] <= 103
    assert 100 <= two["prompt_tokens"] - one["prompt_tokens"] <= 103
    assert two["prompt_tokens_details"]["multimodal_tokens"] == {"image": 200}


def test_media_that_are_not_split_between_steps_are_answered() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [picture, {"type": "text", "text": "what is this?"}, picture]}
    with running_server(tokens_per_medium=100, disable_chunked_mm_input=True, max_num_batched_tokens=128) as server:
        assert chat(server, messages=[message], max_tokens=2).status == 200


def test_a_character_that_stands_for_media_in_a_template_may_be_in_a_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "what \ue000 is \ue000 this?"}
    with running_server(tokens_per_medium=100, enable_prompt_tokens_details=True) as server:
        reply = chat(server, messages=[{"role": "user", "content": [text, picture]}], max_tokens=1)
    assert reply.status == 200
    assert reply.json["usage"]["prompt_tokens_details"]["multimodal_tokens"] == {"image": 100}


def test_a_full_queue_turns_requests_away() -> None:
    with running_server(max_num_queued_reqs=2) as server:
        reply = chat(server, n=3, stream=True)
        assert (reply.status, reply.json["error"]["type"]) == (503, "Service Unavailable")
        assert chat(server, n=2, max_tokens=1).status == 200


def test_a_priority_goes_to_the_scheduler(server: TestServer) -> None:
    assert chat(server, max_tokens=1, priority=5).status == 200
    headers = {"X-Vllm-Priority": "-3"}
    body = {"model": "m", "prompt": "a", "max_tokens": 1}
    assert call(server, "POST", "/v1/completions", body, headers).status == 200


def test_equal_seeds_give_equal_bytes(server: TestServer) -> None:
    fields: dict[str, Any] = {"seed": 7, "max_tokens": 10, "logprobs": 3, "echo": True, "n": 2}
    first, second = (complete(server, **fields).json["choices"] for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert first[0] != first[1]
