"""Token ids in and out, and prompts rendered to be sent there."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import PlainReply, call, chat, chunks_of
from tests.wire.serving import TestServer, running_server

MESSAGES = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def scaled_out() -> Iterator[TestServer]:
    with running_server(enable_scale_out=True) as running:
        yield running


def generate(server: TestServer, sampling: Any, **fields: Any) -> PlainReply:
    body = {"token_ids": [1000, 1001, 1002], "sampling_params": sampling, **fields}
    return call(server, "POST", "/inference/v1/generate", body)


@pytest.mark.parametrize(
    "path", ["/inference/v1/generate", "/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render"]
)
def test_without_the_flag_the_routes_are_forbidden(server: TestServer, path: str) -> None:
    reply = call(server, "POST", path, {})
    assert (reply.status, reply.json["error"]["type"]) == (403, "PermissionDeniedError")


def test_a_reply_has_as_many_ids_as_requested(scaled_out: TestServer) -> None:
    reply = generate(scaled_out, {"max_tokens": 7, "ignore_eos": True}).json
    assert len(reply["choices"][0]["token_ids"]) == 7 == reply["usage"]["completion_tokens"]
    assert reply["choices"][0]["weight_versions"] == [{"version": "default", "start": 0, "end": 7}]


def test_a_stream_brings_the_ids_of_the_whole_reply(scaled_out: TestServer) -> None:
    sampling = {"max_tokens": 9, "temperature": 0, "ignore_eos": True}
    whole = generate(scaled_out, sampling).json["choices"][0]["token_ids"]
    chunks = chunks_of(generate(scaled_out, sampling, stream=True).body)
    assert [each for chunk in chunks for each in chunk["choices"][0]["token_ids"]] == whole
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_the_text_is_that_of_the_ids(scaled_out: TestServer) -> None:
    sampling = {"max_tokens": 9, "temperature": 0, "ignore_eos": True}
    choice = generate(scaled_out, sampling, output_mode="text").json["choices"][0]
    decoded = call(scaled_out, "POST", "/detokenize", {"tokens": choice["token_ids"]}).json["prompt"]
    assert choice["text"].strip() == decoded.strip()
    message = generate(scaled_out, sampling, output_mode="derender").json["choices"][0]["message"]
    assert message["content"] == choice["text"]


def test_log_probabilities_are_of_the_tokens_that_came(scaled_out: TestServer) -> None:
    choice = generate(scaled_out, {"max_tokens": 4, "logprobs": 2, "ignore_eos": True}).json["choices"][0]
    assert [each["token_id"] for each in choice["logprobs"]["content"]] == choice["token_ids"]


def test_without_a_limit_the_answer_may_fill_the_context(scaled_out: TestServer) -> None:
    reply = generate(scaled_out, {"ignore_eos": True}).json
    assert reply["usage"]["total_tokens"] == 2048


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"token_ids": [], "sampling_params": {}}, "List should have at least 1 item"),
        ({"token_ids": [-1], "sampling_params": {}}, "token_ids must not contain negative values"),
        ({"token_ids": [1], "sampling_params": 5}, "Input should be an instance of SamplingParams"),
        ({"token_ids": [1], "sampling_params": {"top_p": 2}}, "top_p must be in (0, 1], got 2.0."),
        ({"token_ids": [1] * 2048, "sampling_params": {}}, "longer than the maximum model length of 2048"),
        ({"token_ids": [1], "sampling_params": {"stop": "x", "detokenize": False}}, "stop strings are only supported"),
        ({"token_ids": [1], "sampling_params": {}, "stream": True, "output_mode": "derender"}, "does not support"),
    ],
)
def test_bad_requests_are_refused(scaled_out: TestServer, body: Any, message: str) -> None:
    reply = call(scaled_out, "POST", "/inference/v1/generate", body)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]


def test_a_request_without_tokens_is_not_rendered() -> None:
    with running_server(enable_scale_out=True, trust_request_chat_template=True) as server:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "chat_template": "{{ '' }}"}
        reply = call(server, "POST", "/v1/chat/completions/render", body)
    assert (reply.status, reply.json["error"]["message"]) == (400, "No token_ids rendered")


@pytest.mark.parametrize(
    ("given", "shown"), [({}, "none"), ({"tool_choice": None}, None), ({"tool_choice": "none"}, "none")]
)
def test_a_rendered_chat_has_the_tool_choice_of_its_request(scaled_out: TestServer, given: Any, shown: Any) -> None:
    rendered = call(scaled_out, "POST", "/v1/chat/completions/render", {"messages": MESSAGES, **given}).json
    assert rendered["parse_context"]["tool_choice"] == shown


def test_a_rendered_chat_can_be_sent_on_and_costs_the_same(scaled_out: TestServer) -> None:
    ask = {"model": "m", "messages": MESSAGES, "max_tokens": 5, "ignore_eos": True}
    rendered = call(scaled_out, "POST", "/v1/chat/completions/render", ask).json
    reply = call(scaled_out, "POST", "/inference/v1/generate", rendered).json
    assert reply["usage"] == chat(scaled_out, max_tokens=5, ignore_eos=True).json["usage"]


@pytest.mark.parametrize(("thinks", "has_ended"), [(True, False), (False, True)])
def test_a_rendered_prompt_has_whether_reasoning_is_over(thinks: bool, has_ended: bool) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if not enable_thinking %}<think></think>{% endif %}"
    )
    with running_server(enable_scale_out=True, reasoning_parser="deepseek_r1", chat_template=template) as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": thinks}}
        rendered = call(server, "POST", "/v1/chat/completions/render", body).json
    assert rendered["reasoning_ended"] is has_ended
    assert rendered["reasoning_parser_kwargs"]["chat_template_kwargs"]["enable_thinking"] is thinks


def test_prompts_are_rendered_one_by_one(scaled_out: TestServer) -> None:
    ask = {"model": "m", "prompt": ["a b", "c"], "max_tokens": 3, "return_token_offsets": True}
    first, second = call(scaled_out, "POST", "/v1/completions/render", ask).json
    assert first["request_id"].removesuffix("-0") == second["request_id"].removesuffix("-1")
    assert first["token_offsets"] == [[0, 1], [1, 3]]
    assert first["sampling_params"]["max_tokens"] == 3


def test_a_server_for_tokens_only_has_no_text_routes() -> None:
    with running_server(tokens_only=True) as server:
        assert "stop strings are not supported" in generate(server, {"stop": ["x"]}).json["error"]["message"]
        assert "requires a tokenizer" in generate(server, {}, output_mode="text").json["error"]["message"]
        assert call(server, "POST", "/abort_requests", {"request_ids": []}).status == 200


def test_a_response_can_be_rendered(scaled_out: TestServer) -> None:
    body = {"model": "m", "input": "hello there", "max_output_tokens": 3}
    rendered = call(scaled_out, "POST", "/v1/responses/render", body).json
    used = call(scaled_out, "POST", "/v1/responses", body).json["usage"]["input_tokens"]
    assert (len(rendered["token_ids"]), rendered["sampling_params"]["max_tokens"]) == (used, 3)


@pytest.mark.parametrize(
    ("path", "asked", "shows_empty"),
    [
        ("/v1/chat/completions/render", {"messages": MESSAGES}, False),
        ("/v1/completions/render", {"prompt": "a"}, False),
        ("/v1/responses/render", {"input": "a"}, True),
    ],
)
def test_rendered_requests_have_no_empty_objects(
    path: str, asked: dict[str, Any], shows_empty: bool, scaled_out: TestServer
) -> None:
    def rendered(**fields: Any) -> dict[str, Any]:
        body = call(scaled_out, "POST", path, {**asked, "vllm_xargs": {}, **fields}).json
        found: dict[str, Any] = body[0] if isinstance(body, list) else body
        return found

    found = rendered(kv_transfer_params={}, thinking_token_budget=-1)
    assert ("extra_args" in found["sampling_params"], found["kv_transfer_params"]) == (shows_empty, None)
    assert "thinking_token_budget" not in found["sampling_params"]
    for name in ("kv_transfer_params", "ec_transfer_params"):
        found = rendered(**{name: {"a": 1}})
        assert ("extra_args" in found["sampling_params"], found[name]) == (False, {"a": 1})


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"watermarking": "no"}, {"watermarking": False}),
        ({"stream_interval": "3"}, {"stream_interval": 3}),
        ({"spaces_between_special_tokens": 0}, {"spaces_between_special_tokens": False}),
        ({"logit_bias": {" 5 ": "1"}}, {"logit_bias": {"5": 1.0}}),
        ({"routed_experts_prompt_start": 1.0}, {"routed_experts_prompt_start": 1}),
        (
            {"repetition_detection": {"max_pattern_size": "2", "min_pattern_size": 1, "min_count": 2}},
            {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}},
        ),
    ],
)
@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/chat/completions/render", {"messages": MESSAGES}), ("/v1/completions/render", {"prompt": "a"})],
)
def test_rendered_values_are_those_that_were_read(
    path: str, asked: dict[str, Any], fields: dict[str, Any], shown: dict[str, Any], scaled_out: TestServer
) -> None:
    body = call(scaled_out, "POST", path, {**asked, **fields}).json
    sampling = (body[0] if isinstance(body, list) else body)["sampling_params"]
    assert json.dumps({name: sampling.get(name) for name in shown}) == json.dumps(shown)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/messages/render", {"messages": MESSAGES, "max_tokens": 3}), ("/v1/responses/render", {"input": "a"})],
)
def test_other_families_render_the_fields_of_chats(path: str, asked: dict[str, Any], scaled_out: TestServer) -> None:
    body = call(scaled_out, "POST", path, {"model": "m", **asked, "watermarking": "no", "priority": "3"}).json
    assert body["sampling_params"]["watermarking"] is False
    assert body["priority"] == (3 if "responses" in path else 0)


def test_a_stream_reports_usage_where_it_is_asked_for(scaled_out: TestServer) -> None:
    body = {"messages": MESSAGES, "stream": True, "stream_options": {}}
    shown = call(scaled_out, "POST", "/v1/chat/completions/render", body).json["stream_options"]
    assert shown == {"include_usage": False, "continuous_usage_stats": False}


def test_the_model_of_a_rendered_response_is_looked_at_first(scaled_out: TestServer) -> None:
    body = {"model": "x", "input": [{"type": "reasoning", "summary": "user", "id": "r"}]}
    assert call(scaled_out, "POST", "/v1/responses/render", body).status == 404


def test_a_prefill_of_token_ids_names_where_its_blocks_are() -> None:
    config = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "here"})
    with running_server(enable_scale_out=True, kv_transfer_config=config, engine="vllm") as prefiller:
        wanted = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        reply = generate(prefiller, {"max_tokens": 1}, token_ids=list(range(1, 101)), **wanted).json
        assert reply["kv_transfer_params"]["remote_num_tokens"] == 100


@pytest.mark.parametrize(("named", "status"), [(["a"], 200), ("a", 200), (5, 200), (None, 400)])
def test_an_abort_without_request_ids_aborts_none(scaled_out: TestServer, named: Any, status: int) -> None:
    assert call(scaled_out, "POST", "/inference/v1/abort_requests", {"request_ids": named}).status == status


def test_a_conversation_in_anthropics_words_is_refused_in_openais_where_it_is_rendered(scaled_out: TestServer) -> None:
    asked = {"model": "x", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
    reply = call(scaled_out, "POST", "/v1/messages/render", asked)
    assert (reply.status, reply.json["error"]["type"], reply.json["error"]["param"]) == (404, "NotFoundError", "model")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions/render", {"prompt": "hi", "logprobs": 1}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}),
    ],
)
def test_rendered_requests_keep_all_sampling_parameters(path: str, asked: dict[str, Any]) -> None:
    """vLLM 0.33 renders these fields, in this order."""
    given = {"watermarking": False, "logprob_token_ids": [5], "spaces_between_special_tokens": False}
    given |= {"stream_interval": 3, "thinking_token_budget": 5}
    with running_server(enable_scale_out=True) as server:
        reply = call(server, "POST", path, {"model": "m", "max_tokens": 3, **asked, **given}).json
        usual = call(server, "POST", path, {"model": "m", "max_tokens": 3, **asked}).json
    rendered, plain = (
        each[0]["sampling_params"] if isinstance(each, list) else each["sampling_params"] for each in (reply, usual)
    )
    assert [(name, value) for name, value in rendered.items() if name in given] == list(given.items())
    assert ("logprobs" in plain, "logprobs" in rendered) == (True, False)
    assert not plain.keys() & given.keys()


def test_generated_tokens_come_at_the_interval_of_the_sampling_parameters(scaled_out: TestServer) -> None:
    reply = generate(scaled_out, {"max_tokens": 9, "ignore_eos": True, "stream_interval": 4}, stream=True)
    sizes = [len(each["choices"][0].get("token_ids") or ()) for each in chunks_of(reply.body) if each["choices"]]
    assert sizes == [1, 4, 4]
