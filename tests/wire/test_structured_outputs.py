"""Structured outputs on the wire, as captured from vLLM 0.33."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import PlainReply, call, chunks_of, events_of
from tests.wire.serving import TestServer, running_server

ONE_BACKEND = (
    "Structured output processing only supports one backend per engine. "
    "The engine is already using 'xgrammar', but this request resolved to 'guidance'. "
    "Configure `structured_outputs_config.backend` explicitly or use schemas supported by the initialized backend."
)
FOR_XGRAMMAR: dict[str, Any] = {"json": {"type": "integer"}}
FOR_GUIDANCE: dict[str, Any] = {"json": {"type": "integer", "multipleOf": 7}}
SCHEMA = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(
        enable_auto_tool_choice=True, tool_call_parser="hermes", enable_scale_out=True, tool_call_extra_probability=0
    ) as running:
        yield running


def chat(server: TestServer, **fields: Any) -> PlainReply:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, **fields}
    return call(server, "POST", "/v1/chat/completions", body)


def message_of(reply: PlainReply) -> str:
    found: str = reply.json["error"]["message"]
    return found


def test_the_first_backend_serves_the_engine_until_it_ends(server: TestServer) -> None:
    assert chat(server, structured_outputs=FOR_XGRAMMAR).status == 200
    reply = chat(server, structured_outputs=FOR_GUIDANCE)
    error = {"message": ONE_BACKEND, "type": "BadRequestError", "param": None, "code": 400}
    assert (reply.status, reply.json) == (400, {"error": error})
    stream = chat(server, structured_outputs=FOR_GUIDANCE, stream=True)
    assert stream.status == 200
    assert [json.loads(each) for each in events_of(stream.body)[:1]] == [{"error": error}]
    assert chat(server, structured_outputs=FOR_XGRAMMAR).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "structured_outputs": FOR_GUIDANCE}),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"structured_outputs": FOR_GUIDANCE}}),
        (
            "/v1/responses",
            {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": FOR_GUIDANCE["json"]}}},
        ),
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": "hi"}],
                "model": "m",
                "max_tokens": 9,
                "output_config": {"format": {"type": "json_schema", "schema": FOR_GUIDANCE["json"]}},
            },
        ),
    ],
)
def test_all_routes_share_the_backend_of_the_engine(server: TestServer, path: str, body: dict[str, Any]) -> None:
    assert chat(server, tools=[TOOL], tool_choice="required").status == 200  # a forced call is held to a structural tag
    reply = call(server, "POST", path, body)
    assert (reply.status, message_of(reply)) == (400, ONE_BACKEND)


def test_a_lenient_server_lets_every_request_have_its_backend() -> None:
    with running_server(lenient_structured_outputs=True) as server:
        for demand in (FOR_XGRAMMAR, FOR_GUIDANCE, FOR_XGRAMMAR):
            assert chat(server, structured_outputs=demand).status == 200


def test_a_configured_backend_takes_all_requests() -> None:
    config = '{"backend": "guidance"}'
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    with running_server(structured_outputs_config=config, **settings) as server:
        for demand in (FOR_XGRAMMAR, FOR_GUIDANCE):
            assert chat(server, structured_outputs=demand).status == 200
        reply = chat(server, tools=[TOOL], tool_choice="required")
        assert (reply.status, message_of(reply)) == (400, "Invalid grammar specification: 'triggers'")


def test_a_constraint_beside_tools_makes_the_content(server: TestServer) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for seed in range(5):
        reply = chat(server, response_format=wanted, tools=[TOOL], seed=seed)
        message = reply.json["choices"][0]["message"]
        assert set(json.loads(message["content"])) == {"q"}
        assert "tool_calls" not in message


@pytest.mark.parametrize("demand", [{"regex": "a+"}, {"json": {}}, {"choice": ["a"]}, {"grammar": "x"}])
def test_refuses_an_object_of_any_form_beside_another_constraint(server: TestServer, demand: dict[str, Any]) -> None:
    reply = chat(server, response_format={"type": "json_object"}, structured_outputs=demand)
    fields = dict.fromkeys(("json", "regex", "choice", "grammar")) | demand | {"json_object": True}
    fields |= {"disable_any_whitespace": False, "disable_additional_properties": False, "whitespace_pattern": None}
    fields |= {"structural_tag": None, "_backend": None, "_backend_was_auto": False}
    assert reply.status == 400
    assert message_of(reply) == (
        f"You can only use one kind of structured outputs constraint but multiple are specified: {fields}"
    )


@pytest.mark.parametrize("demand", [{"regex": ""}, {"choice": [""]}, {"json": {"anyOf": []}}])
def test_an_empty_text_is_content(server: TestServer, demand: dict[str, Any]) -> None:
    choice = chat(server, structured_outputs=demand).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


CIRCLES: list[Any] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"$anchor": "a", "$ref": "#"},
    {"$defs": {"b": {"$ref": "#/$defs/c"}, "c": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/b"},
    {"x": {"y": {"$ref": "#/x/y"}}, "$ref": "#/x/y"},
]


@pytest.mark.parametrize("demand", [*({"json": each} for each in CIRCLES), {"grammar": "root ::= root"}])
def test_fails_inside_on_a_form_that_cannot_begin(server: TestServer, demand: dict[str, Any]) -> None:
    reply = chat(server, structured_outputs=demand)
    assert (reply.status, message_of(reply)) == (500, "Internal server error")


LOOP: dict[str, Any] = {"$anchor": "a", "$ref": "#a"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$anchor": "a", "allOf": [{"$ref": "#a"}]},
        {"$defs": {"b": LOOP}, "$ref": "#/$defs/b"},
        {"x": {"y": LOOP}, "$ref": "#/x/y"},
        LOOP,
    ],
)
def test_an_anchor_that_leads_back_to_itself_allows_any_value(server: TestServer, schema: dict[str, Any]) -> None:
    """xgrammar has no anchors, so that a reference to one allows every value."""
    assert isinstance(content_of(server, schema), str)


def test_a_member_whose_anchor_leads_back_to_itself_has_any_value(server: TestServer) -> None:
    assert isinstance(content_of(server, {"properties": {"x": LOOP}, "required": ["x"]})["x"], str)


SECRET: dict[str, Any] = {
    "type": "object",
    "properties": {"user": {"type": "string"}, "secret": {"type": "string"}},
    "required": ["user", "secret"],
    "additionalProperties": False,
}


def secret_with(**keywords: Any) -> dict[str, Any]:
    return {**SECRET, "properties": {**SECRET["properties"], "secret": {"type": "string", **keywords}}}


def test_content_meets_the_look_ahead_of_a_pattern(server: TestServer) -> None:
    found = content_of(server, secret_with(pattern=r"^(?=.*[A-Z])(?=.*\d).{8,}$"))
    assert found.keys() == {"user", "secret"}
    assert re.fullmatch(r"(?=.*[A-Z])(?=.*\d).{8,}", found["secret"])


@pytest.mark.parametrize(
    "keywords", [{"format": "password"}, {"pattern": "(?=a)b"}, {"format": "nope", "minLength": 3}]
)
@pytest.mark.parametrize("strict", [False, True])
def test_arguments_have_a_member_of_a_form_that_is_not_known(
    server: TestServer, keywords: dict[str, Any], strict: bool
) -> None:
    function = {"name": "f", "parameters": secret_with(**keywords), "strict": strict}
    reply = chat(server, tools=[{"type": "function", "function": function}], tool_choice="required")
    (call_made,) = reply.json["choices"][0]["message"]["tool_calls"]
    assert json.loads(call_made["function"]["arguments"]).keys() == {"user", "secret"}


def content_of(server: TestServer, schema: dict[str, Any]) -> Any:
    reply = chat(server, structured_outputs={"json": schema})
    assert reply.status == 200, reply.body
    return json.loads(reply.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("num_nested", range(6))
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_schema_that_refutes_itself_is_met_by_any_value(server: TestServer, keyword: str, num_nested: int) -> None:
    schema: dict[str, Any] = {keyword: "#"}
    for _ in range(num_nested):
        schema = {"allOf": [schema]}
    schema = {"not": schema}
    reply = call(server, "POST", "/v1/completions", {"prompt": "hi", "structured_outputs": {"json": schema}})
    assert reply.status == 200, reply.body
    json.loads(reply.json["choices"][0]["text"])
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert chat(server, tools=[tool], tool_choice="required").status == 200


def generated(server: TestServer, demand: Any) -> PlainReply:
    body = {"token_ids": [1, 2, 3], "output_mode": "text", "sampling_params": {"structured_outputs": demand}}
    return call(server, "POST", "/inference/v1/generate", body)


def test_generate_applies_constraints(server: TestServer) -> None:
    assert generated(server, {"regex": "abcd"}).json["choices"][0]["text"] == "abcd"
    refused = generated(server, {"regex": "(?=a)"})
    assert (refused.status, message_of(refused).partition("(in regex)")[0]) == (
        400,
        'Grammar error: at 1(8): invalid regex "(?=a)" ',
    )
    assert message_of(generated(server, {})).startswith("You must use one kind of structured outputs constraint")
    assert message_of(generated(server, {"choice": []})) == "Choice '[]' cannot be an empty list"
    assert generated(server, {"regex": 3}).json["error"]["param"] == "body.sampling_params"


def test_a_stop_within_arguments_ends_a_stream_as_calls_do(server: TestServer) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "stop": ["q"]}
    whole = chat(server, **fields).json["choices"][0]
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", "q")
    assert whole["message"]["content"].endswith('"arguments": {"')
    last = chunks_of(chat(server, stream=True, **fields).body)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("tool_calls", "q")


def test_a_stop_before_the_name_ends_a_stream_as_text_does(server: TestServer) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "stop": ["name"], "stream": True}
    last = chunks_of(chat(server, **fields).body)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "name")


def test_a_stop_at_the_end_mark_leaves_a_whole_call(server: TestServer) -> None:
    choice = chat(server, tools=[TOOL], tool_choice="required", stop=["</tool_call>"]).json["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", "</tool_call>")
    assert set(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])) == {"q"}


@pytest.mark.parametrize(
    ("tool", "status", "message"),
    [
        ({"type": "function"}, 500, "'function'"),
        ({"type": "function", "function": {}}, 500, "'name'"),
        (3, 400, "'int' object is not subscriptable"),
    ],
)
def test_a_malformed_tool_before_the_named_one_is_answered_as_vllm_does(
    server: TestServer, tool: Any, status: int, message: str
) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    reply = chat(server, tools=[tool, TOOL], tool_choice=choice)
    assert (reply.status, message_of(reply)) == (status, message)
