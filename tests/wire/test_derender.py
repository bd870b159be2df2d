"""Replies derendered from another server's token ids equal those of a single server."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call, chunks_of
from tests.wire.serving import TestServer, running_server

FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 300,
}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions/derender", "/v1/completions/derender"


@pytest.fixture(scope="module")
def split() -> Iterator[TestServer]:
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    with running_server(
        **settings, reasoning_parser="deepseek_r1", enable_scale_out=True, default_reasoning_tokens=9
    ) as server:
        yield server


def post(server: TestServer, path: str, body: Any) -> Any:
    return call(server, "POST", path, body).json


def message(server: TestServer) -> dict[str, Any]:
    """The message of an undivided server, without the ids of its calls."""
    return without_ids(post(server, "/v1/chat/completions", CHAT)["choices"][0]["message"])


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**each, "id": "", "type": "function"} for each in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls}


def rebuilt(deltas: list[dict[str, Any]]) -> tuple[str, str, list[list[str]]]:
    """Content, reasoning and calls of a stream."""
    calls: list[list[str]] = []
    for part in (each for delta in deltas for each in delta.get("tool_calls") or ()):
        if part["id"] is not None:
            calls.append(["", ""])
        for place, name in enumerate(("name", "arguments")):
            calls[part["index"]][place] += part["function"][name] or ""
    content, reasoning = ("".join(each.get(name) or "" for each in deltas) for name in ("content", "reasoning"))
    return content, reasoning, calls


def test_a_chat_that_goes_through_three_servers_reads_the_same(split: TestServer) -> None:
    rendered = post(split, "/v1/chat/completions/render", CHAT)
    generated = post(split, "/inference/v1/generate", rendered)
    body = {"generate_response": generated, "chat_request": CHAT, "prompt_token_ids": rendered["token_ids"]}
    reply = post(split, CHAT_PATH, body | {"prompt_tokens": len(rendered["token_ids"])})
    (choice,) = reply["choices"]
    assert (reply["id"], reply["object"]) == (generated["request_id"], "chat.completion")
    assert choice["finish_reason"] == "tool_calls"
    assert reply["usage"]["completion_tokens"] == len(generated["choices"][0]["token_ids"])
    said = message(split)
    assert without_ids(choice["message"])["reasoning"]
    assert [each["type"] for each in choice["message"]["tool_calls"]] == ["function"] * len(said["tool_calls"])


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_a_stream_of_chunks_brings_what_the_whole_reply_has(split: TestServer, num_tokens: int) -> None:
    rendered = post(split, "/v1/chat/completions/render", CHAT)
    generated = post(split, "/inference/v1/generate", rendered)
    base = {"chat_request": CHAT, "prompt_token_ids": rendered["token_ids"]}
    whole = post(split, CHAT_PATH, base | {"generate_response": generated})["choices"][0]
    ids = generated["choices"][0]["token_ids"]
    state, deltas, reasons = None, [], []
    for start in range(0, len(ids), num_tokens):
        reason = "stop" if start + num_tokens >= len(ids) else None
        choice = {"index": 0, "token_ids": ids[start : start + num_tokens], "finish_reason": reason}
        chunk = {"request_id": "r", "choices": [choice]}
        reply = post(split, CHAT_PATH, base | {"stream": True, "generate_chunk": chunk, "stream_state": state})
        (reported,), state = reply["chunk"]["choices"], reply["stream_state"]
        deltas.append(reported["delta"])
        reasons.append(reported["finish_reason"])
    content, reasoning, calls = rebuilt(deltas)
    assert (content or None, reasoning) == (whole["message"]["content"], whole["message"]["reasoning"])
    said = [each["function"] for each in whole["message"]["tool_calls"]]
    assert calls == [[each["name"], each["arguments"]] for each in said]
    assert [each["role"] for each in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert set(reasons[:-1]) <= {None}
    assert reasons[-1] == "tool_calls"


def test_completions_of_several_prompts_become_one_reply(split: TestServer) -> None:
    asked = {"model": "m", "prompt": ["one two", "three"], "temperature": 0, "max_tokens": 6}
    rendered = call(split, "POST", "/v1/completions/render", asked).json
    generated = [post(split, "/inference/v1/generate", each) for each in rendered]
    reply = post(split, TEXT_PATH, {"generate_responses": generated, "prompt_tokens": [3, 2]})
    texts = [each["text"] for each in reply["choices"]]
    assert all(texts)
    assert [each["index"] for each in reply["choices"]] == [0, 1]
    assert reply["usage"]["total_tokens"] == 5 + sum(len(each["choices"][0]["token_ids"]) for each in generated)
    assert texts == [
        post(split, "/detokenize", {"tokens": each["choices"][0]["token_ids"]})["prompt"] for each in generated
    ]


def test_a_completion_comes_chunk_by_chunk(split: TestServer) -> None:
    ids = post(split, "/tokenize", {"prompt": "The quick brown fox", "add_special_tokens": False})["tokens"]
    state, texts = None, []
    for each in ids:
        chunk = {"choices": [{"index": 0, "token_ids": [each]}]}
        reply = post(split, TEXT_PATH, {"stream": True, "generate_chunk": chunk, "stream_state": state})
        state = reply["stream_state"]
        texts.append(reply["chunk"]["choices"][0]["text"])
    assert "".join(texts) == "The quick brown fox"
    assert len(texts) > 1
    usage = {"prompt_tokens": 1, "completion_tokens": 4}
    last = {"stream": True, "generate_chunk": {"choices": [], "usage": usage}, "stream_state": state}
    assert post(split, TEXT_PATH, last)["chunk"]["usage"]["total_tokens"] == 5


def test_a_stop_string_cuts_the_text_and_a_stop_token_is_not_shown(split: TestServer) -> None:
    ids = post(split, "/tokenize", {"prompt": "one two three", "add_special_tokens": False})["tokens"]
    request = {"model": "m", "prompt": "x"}

    def choice(**fields: Any) -> tuple[str, Any]:
        generated = {"choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}
        body = {"generate_responses": [generated], "completion_request": request | fields}
        (found,) = post(split, TEXT_PATH, body)["choices"]
        return found["text"], found["stop_reason"]

    assert choice(stop=["two"]) == ("one ", "two")
    assert choice(stop_token_ids=[ids[-1]]) == ("one two", ids[-1])
    assert choice(stop_token_ids=[ids[-1]], include_stop_str_in_output=True) == ("one two three", ids[-1])


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT_PATH, {}, "body.DerenderChatRequest.generate_response"),
        (CHAT_PATH, {"generate_response": {"choices": []}}, "chat_request is required when a tool"),
        (
            CHAT_PATH,
            {"generate_response": {"choices": [{"index": 0}]}, "chat_request": CHAT},
            "has empty or null token",
        ),
        (
            CHAT_PATH,
            {"stream": True, "generate_chunk": {"choices": []}, "chat_request": CHAT},
            "prompt_token_ids is req",
        ),
        (
            CHAT_PATH,
            {"stream": True, "generate_chunk": {"choices": []}, "chat_request": {**CHAT, "stop": "x"}},
            "stop strings",
        ),
        (
            CHAT_PATH,
            {"generate_response": {"choices": [{"index": 0, "token_ids": [1] * 3000}]}, "chat_request": CHAT},
            "exceeds max_model_len (2048)",
        ),
        (TEXT_PATH, {"generate_responses": []}, "must not be empty"),
        (
            TEXT_PATH,
            {"generate_responses": [{"choices": []}], "prompt_tokens": [1, 2]},
            "must equal generate_responses",
        ),
        (
            TEXT_PATH,
            {"stream": True, "generate_chunk": {"choices": [{"index": 0}, {"index": 1}]}},
            "at most one choice per chunk (got 2)",
        ),
        (
            CHAT_PATH,
            {"generate_response": {"choices": []}, "chat_request": {**CHAT, "model": [None]}},
            "'loc': 'body.DerenderChatRequest.chat_request.model', 'msg': 'Input should be a valid string'",
        ),
        (
            TEXT_PATH,
            {"generate_responses": [], "completion_request": 3},
            "'loc': 'body.completion_request', 'msg': 'Input should be a valid dictionary or",
        ),
    ],
)
def test_tokens_that_cannot_be_made_a_reply_are_refused(split: TestServer, path: str, body: Any, message: str) -> None:
    reply = call(split, "POST", path, body)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]


def test_a_stream_of_the_generating_server_can_be_sent_on_chunk_by_chunk(split: TestServer) -> None:
    rendered = post(split, "/v1/chat/completions/render", CHAT | {"stream": True})
    chunks = chunks_of(call(split, "POST", "/inference/v1/generate", rendered).body)
    state: Any = None
    reasons: list[Any] = []
    for each in chunks:
        body = {"stream": True, "generate_chunk": each, "chat_request": CHAT, "stream_state": state}
        reply = post(split, CHAT_PATH, body | {"prompt_token_ids": rendered["token_ids"]})
        state = reply["stream_state"]
        reasons += [one["finish_reason"] for one in reply["chunk"]["choices"]]
    assert reasons[-1] in ("stop", "tool_calls")


def _chunk(**fields: Any) -> dict[str, Any]:
    return {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [5]}], **fields}}


def _whole(**choice: Any) -> dict[str, Any]:
    return {"generate_responses": [{"choices": [{"index": 0, "token_ids": [5], **choice}]}]}


@pytest.mark.parametrize(
    ("body", "field", "kind"),
    [
        (
            _chunk() | {"stream_state": {"logprob_text_offset": "nan"}},
            "stream_state.logprob_text_offset",
            "int_parsing",
        ),
        (_chunk() | {"stream_state": {"logprob_text_offset": math.inf}}, "stream_state.logprob_text", "finite_number"),
        (_chunk() | {"stream_state": {"logprob_text_offset": -1}}, "stream_state.logprob", "greater_than_equal"),
        (_chunk() | {"stream_state": {"logprob_text_offset": None}}, "stream_state.logprob_text_offset", "int_type"),
        (_chunk() | {"stream_state": {"role_sent": "nan"}}, "stream_state.role_sent", "bool_parsing"),
        (_chunk() | {"stream_state": {"prefix_offset": "x"}}, "stream_state.prefix_offset", "int_parsing"),
        (_chunk() | {"stream_state": {"logprob_context_token_ids": [1] * 5}}, "logprob_context_token_ids", "too_long"),
        (_chunk(usage={"prompt_tokens": "nan"}), "generate_chunk.usage.prompt_tokens", "int_parsing"),
        (_chunk(usage={"completion_tokens": [1]}), "generate_chunk.usage.completion_tokens", "int_type"),
        (_whole(index="nan"), "choices.0.index", "int_parsing"),
        (_whole(logprobs={"content": [{"token_id": math.nan, "logprob": 0}]}), "token_id", "finite_number"),
    ],
)
def test_an_invalid_number_is_refused_with_its_field(split: TestServer, body: Any, field: str, kind: str) -> None:
    reply = call(split, "POST", TEXT_PATH, body)
    assert reply.status == 400
    assert field in reply.json["error"]["message"]
    assert f"'type': '{kind}'" in reply.json["error"]["message"]


def test_numbers_that_are_sent_as_strings_or_floats_are_read_as_integers(split: TestServer) -> None:
    scored = {"token_id": "5.0", "logprob": "-1", "rank": "1.0"}
    choice = {"index": "0.0", "token_ids": ["5"], "logprobs": {"content": [{**scored, "top_logprobs": [scored]}]}}
    chunk = {"choices": [choice], "usage": {"prompt_tokens": "3.0", "completion_tokens": 2.0}}
    state = {"logprob_text_offset": "7.0", "role_sent": "yes"}
    body = {
        "stream": True,
        "generate_chunk": chunk,
        "stream_state": state,
        "completion_request": {"prompt": "x", "logprobs": 1},
    }
    found = post(split, TEXT_PATH, body)
    assert found["chunk"]["choices"][0]["index"] == 0
    assert found["chunk"]["choices"][0]["logprobs"]["text_offset"] == [7]
    assert found["chunk"]["usage"]["total_tokens"] == 5
    assert found["stream_state"]["role_sent"] is True


TOO_SMALL, TOO_LARGE = (f"number too {word} to fit in target type" for word in ("small", "large"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_whole(token_ids=[-1]), "Value error, token_ids must not contain negative values"),
        (_whole(logprobs={"content": [{"token_id": -1, "logprob": 0}]}), TOO_SMALL),
        (_whole(logprobs={"content": [{"token_id": 2**40, "logprob": 0}]}), TOO_LARGE),
        (
            _whole(
                logprobs={"content": [{"token_id": 5, "logprob": 0, "top_logprobs": [{"token_id": -1, "logprob": 0}]}]}
            ),
            TOO_SMALL,
        ),
    ],
)
def test_a_token_id_that_no_tokenizer_has_is_refused(split: TestServer, body: Any, message: str) -> None:
    reply = call(split, "POST", TEXT_PATH, body)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]


def test_a_negative_token_id_of_a_chunk_has_no_text(split: TestServer) -> None:
    found = post(split, TEXT_PATH, {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [-1]}]}})
    assert found["chunk"]["choices"][0]["text"] == ""


def test_fields_that_a_body_of_the_form_does_not_have_are_not_read(split: TestServer) -> None:
    unknown: dict[str, Any] = {"choices": [{"token_ids": ["nan"]}], "stream_state": {"output_chunk_lens": "nan"}}
    reply = call(split, "POST", TEXT_PATH, {**_whole(token_ids=[5, 6, 7]), **unknown})
    assert (reply.status, len(reply.json["choices"])) == (200, 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/derender", {"generate_response": {"choices": []}, "chat_request": {"messages": []}}),
        ("/v1/completions/derender", {"generate_responses": [{"choices": []}]}),
    ],
)
def test_a_reply_without_choices_stays_one(split: TestServer, path: str, body: Any) -> None:
    found = post(split, path, body)
    assert (found["choices"], found["usage"]["total_tokens"]) == ([], 0)


def test_content_of_the_chat_is_not_looked_at(split: TestServer) -> None:
    asked = {"messages": [{"role": "user", "content": [1]}]}
    body = {"stream": True, "generate_chunk": {"choices": [{"index": 0, "token_ids": [5]}]}}
    assert call(split, "POST", CHAT_PATH, {**body, "chat_request": asked, "prompt_token_ids": [5]}).status == 200


def test_metrics_of_a_reply_are_read(split: TestServer) -> None:
    def derendered(metrics: Any) -> Any:
        body = {"generate_response": {"choices": [], "metrics": metrics}, "chat_request": {"messages": []}}
        return post(split, CHAT_PATH, body)

    names = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
    nothing = dict.fromkeys((*names, "speculative_decoding"))
    assert derendered({"mean_itl_ms": "1.5", "a": 1})["metrics"] == nothing | {"mean_itl_ms": 1.5, "a": 1}
    for wrong, num_errors in (({"queue_time_ms": "x"}, 3), ({"speculative_decoding": {}}, 9), (3, 3)):
        assert derendered(wrong)["error"]["message"].startswith(f"{num_errors} validation errors:")


def test_log_probabilities_of_the_prompt_are_handed_on(split: TestServer) -> None:
    scores = [None, {"5": {"logprob": "-1", "rank": 1}}]
    body = {"generate_response": {"choices": [], "prompt_logprobs": scores}, "chat_request": {"messages": []}}
    read = {"5": {"logprob": -1.0, "rank": 1, "decoded_token": None}}
    assert post(split, CHAT_PATH, body)["prompt_logprobs"] == [None, read]


def generated_with_bias(split: TestServer, key: str) -> Any:
    sampling = {"logit_bias": {key: 0.5}, "max_tokens": 1}
    return post(split, "/inference/v1/generate", {"token_ids": [1], "sampling_params": sampling})


@pytest.mark.parametrize("key", ["", "1.5", "0x1", "1__0"])
def test_a_bias_of_what_is_no_token_is_refused_with_its_key(split: TestServer, key: str) -> None:
    message = generated_with_bias(split, key)["error"]["message"]
    assert f"'int_parsing', 'loc': 'body.sampling_params.logit_bias.{key}'" in message, message


@pytest.mark.parametrize("key", [" 1 ", "1_0", "+3", "1.0"])
def test_the_token_of_a_bias_is_read_as_a_number(split: TestServer, key: str) -> None:
    assert len(generated_with_bias(split, key)["choices"]) == 1


def test_a_biased_token_that_no_model_has_is_refused(split: TestServer) -> None:
    assert "out-of-vocab token ids" in generated_with_bias(split, "-2")["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions/render", {"prompt": "a", "logit_bias": {"1": 10**400}}),
        ("/v1/responses", {"input": "a", "presence_penalty": 10**400}),
    ],
)
def test_a_number_beyond_a_float_is_none(split: TestServer, path: str, body: Any) -> None:
    assert "'float_type'" in post(split, path, body)["error"]["message"]


def test_token_ids_as_texts_with_a_point_are_read(split: TestServer) -> None:
    assert post(split, "/detokenize", {"tokens": ["1.0", 1]}) == post(split, "/detokenize", {"tokens": [1, 1]})
