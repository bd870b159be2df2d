"""Conversations in the words of Anthropic's API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import PlainReply, call, chat, events_of
from tests.wire.serving import TestServer, running_server

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
USER = {"role": "user", "content": "hello there"}


@pytest.fixture(scope="module")
def thinking() -> Iterator[TestServer]:
    with running_server(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1",
        enable_prompt_tokens_details=True,
        enable_scale_out=True,
    ) as running:
        yield running


def ask(server: TestServer, **fields: Any) -> PlainReply:
    return call(server, "POST", "/v1/messages", {"model": "m", "max_tokens": 200, "messages": [USER], **fields})


def reported(reply: PlainReply) -> list[Any]:
    """The events of a stream; their names must be their types."""
    events = [each.split("\ndata: ", 1) for each in events_of(reply.body)]
    found = [(name.removeprefix("event: "), json.loads(data)) for name, data in events]
    assert all(name == event["type"] for name, event in found)
    return [event for _, event in found]


def test_an_answer_has_as_many_tokens_as_its_usage(server: TestServer) -> None:
    body = ask(server, max_tokens=5).json
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert body["usage"]["output_tokens"] == 5
    assert body["content"][0]["type"] == "text"


def test_a_stop_sequence_is_named(server: TestServer) -> None:
    text = ask(server, temperature=0, max_tokens=20).json["content"][0]["text"]
    stop = text.split()[2]
    body = ask(server, temperature=0, max_tokens=20, stop_sequences=[stop]).json
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop)


def test_thoughts_are_signed_and_calls_have_their_input(thinking: TestServer) -> None:
    body = ask(thinking, tools=[TOOL], tool_choice={"type": "any"}).json
    thought, *calls = body["content"]
    assert (thought["type"], len(thought["signature"])) == ("thinking", 32)
    assert all(each["type"] == "tool_use" and isinstance(each["input"], dict) for each in calls)
    assert (body["stop_reason"], bool(calls)) == ("tool_use", True)


def test_each_block_of_a_stream_ends_before_the_next_begins(thinking: TestServer) -> None:
    events = reported(ask(thinking, tools=[TOOL], tool_choice={"type": "any"}, stream=True))
    kinds = [each["type"] for each in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    starts = [each for each in events if each["type"] == "content_block_start"]
    assert [each["index"] for each in starts] == list(range(len(starts)))
    assert kinds.count("content_block_stop") == len(starts)
    arguments = "".join(each["delta"].get("partial_json", "") for each in events if "delta" in each)
    assert arguments.startswith("{")
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize(
    ("parser", "kinds"),
    [
        ("hermes", {"text", "tool_use"}),
        ("mistral", {"text", "tool_use", "invalid_request_error"}),
        ("qwen3_coder", {"text", "tool_use"}),
        ("pythonic", {"text", "tool_use"}),
    ],
)
def test_a_message_that_is_cut_in_a_call_has_what_the_parser_finds(parser: str, kinds: set[str]) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": ["some words"]}}, "required": ["x"]}
    tools = [{"name": "f", "input_schema": schema}]
    with running_server(enable_auto_tool_choice=True, tool_call_parser=parser) as server:
        replies = [ask(server, tools=tools, max_tokens=limit).json for limit in range(1, 40)]
    found = {each["error"]["type"] if "error" in each else each["content"][0]["type"] for each in replies}
    assert found == kinds
    partial = [each["content"][0].get("input") for each in replies if "content" in each]
    assert ({} in partial) == (parser in ("mistral", "qwen3_coder"))


def test_cached_tokens_are_no_input_tokens(thinking: TestServer) -> None:
    system = "word " * 200
    first = ask(thinking, system=system, max_tokens=2).json["usage"]
    second = ask(thinking, system=system, max_tokens=2).json["usage"]
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"] > 100
    assert sum(first[name] for name in first if "input" in name) == sum(
        second[name] for name in second if "input" in name
    )


def test_tokens_are_counted_as_they_are_used(server: TestServer) -> None:
    body = {"model": "m", "messages": [USER], "system": "be brief"}
    counted = call(server, "POST", "/v1/messages/count_tokens", body).json
    assert counted["input_tokens"] == ask(server, system="be brief", max_tokens=1).json["usage"]["input_tokens"]
    assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}


def test_fields_of_an_answer_mean_nothing_where_tokens_are_counted(server: TestServer) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
    plain = call(server, "POST", "/v1/messages/count_tokens", asked)
    odd = {"temperature": "x", "stop_sequences": ["a", "b", "c", "d", "e"], "top_p": 7, "max_tokens": "none"}
    assert call(server, "POST", "/v1/messages/count_tokens", asked | odd).json == plain.json


def tools_called(server: TestServer, *blocks: dict[str, Any], **fields: Any) -> PlainReply:
    """The reply to a conversation whose system changes the tools."""
    turns = [{"role": "user", "content": "hi"}, {"role": "system", "content": list(blocks)}]
    body = {"model": "m", "max_tokens": 400, "messages": turns, "tools": [{"name": "look", "input_schema": {}}]}
    return call(server, "POST", "/v1/messages", body | {"tool_choice": {"type": "any"}} | fields)


def test_the_system_may_take_tools_away_and_bring_others(thinking: TestServer) -> None:
    added = {"type": "tool_definition", "definition": {"name": "hear", "input_schema": {}}}
    blocks = [
        {"type": "tool_addition", "tool": added},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
    ]
    called = [each["name"] for each in tools_called(thinking, *blocks).json["content"] if each["type"] == "tool_use"]
    assert set(called) == {"hear"}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}},
            "references tool 'x', which is not",
        ),
        ({"type": "tool_addition"}, "tool is required for tool_addition blocks"),
        (
            {
                "type": "tool_removal",
                "tool": {"type": "tool_definition", "definition": {"name": "x", "input_schema": {}}},
            },
            "tool_removal only accepts a tool_reference",
        ),
    ],
)
def test_a_change_of_tools_that_cannot_be_made_is_refused(
    thinking: TestServer, block: dict[str, Any], message: str
) -> None:
    reply = tools_called(thinking, block)
    assert (reply.status, message in reply.json["error"]["message"]) == (400, True)


def test_only_the_system_changes_tools(thinking: TestServer) -> None:
    block = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}}
    reply = tools_called(thinking, messages=[{"role": "user", "content": [block]}])
    assert (reply.status, 'with role "system"' in reply.json["error"]["message"]) == (400, True)


def test_a_conversation_has_the_prompt_that_it_has_in_chat(server: TestServer) -> None:
    usage = chat(server, max_tokens=1).json["usage"]
    assert ask(server, max_tokens=1).json["usage"]["input_tokens"] == usage["prompt_tokens"]


def test_results_of_tools_and_pictures_become_turns(thinking: TestServer) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "42"}]}
    body = ask(thinking, messages=[USER, use, result], tools=[TOOL]).json
    assert body["content"][-1]["type"] == "text"
    source = {"type": "url", "url": "http://example.com/x.png"}
    refused = ask(thinking, messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])
    assert refused.json == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "m is not a multimodal model"},
    }


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"max_tokens": 0}, "body.max_tokens"),
        ({"model": ""}, "body.model"),
        ({"messages": [{"role": "zz", "content": "x"}]}, "body.messages.0.role"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "body.thinking.enabled.budget_tokens"),
        ({"thinking": {"type": "zz"}}, "body.thinking"),
        ({"thinking": {}}, "body.thinking"),
        ({"thinking": 5}, "body.thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "body"),
        ({"tool_choice": {"type": "tool"}}, "body.tool_choice"),
        ({"tools": [{"name": "f"}]}, "body.tools.0.input_schema"),
    ],
)
def test_an_item_without_a_form_is_refused_by_place(server: TestServer, fields: dict[str, Any], where: str) -> None:
    reply = ask(server, **fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, where)


def test_other_refusals_have_anthropics_error_format(server: TestServer) -> None:
    unknown = ask(server, model="nope")
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")
    assert ask(server, tools=[TOOL]).json["error"]["type"] == "invalid_request_error"
    assert (
        "not found in the tools list"
        in ask(server, tools=[TOOL], tool_choice={"type": "tool", "name": "g"}).json["error"]["message"]
    )


AS_TEXT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"max_tokens": "1100", "thinking": {"type": "enabled", "budget_tokens": "1024"}},
        {"max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    ({"stream": "false"}, {"stream": False}),
    ({"stream": "off", "max_tokens": "7"}, {"max_tokens": 7}),
    ({"temperature": "0.5", "top_p": "0.9", "top_k": "5"}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}),
    (
        {"tools": [{**TOOL, "strict": "no"}], "tool_choice": {"type": "any", "disable_parallel_tool_use": "true"}},
        {"tools": [{**TOOL, "strict": False}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
]


@pytest.mark.parametrize(("given", "meant"), AS_TEXT)
def test_numbers_and_flags_may_be_text(thinking: TestServer, given: dict[str, Any], meant: dict[str, Any]) -> None:
    replies = [ask(thinking, **{"max_tokens": 60, **fields}) for fields in (given, meant)]
    assert [each.status for each in replies] == [200, 200]
    # Lengths are drawn, so that only limits and forms can be compared.
    assert [each.json["type"] for each in replies] == ["message", "message"]
    limit = meant.get("max_tokens", 60)
    assert replies[0].json["usage"]["output_tokens"] <= limit


def test_a_flag_as_text_starts_a_stream(server: TestServer) -> None:
    assert reported(ask(server, stream="yes", max_tokens="2"))[-1] == {"type": "message_stop"}
    assert ask(server, thinking={"type": "enabled", "budget_tokens": "4000"}, max_tokens="4000").status == 400


def test_a_strict_tool_as_text_has_arguments_of_its_schema(thinking: TestServer) -> None:
    schema = {"type": "object", "properties": {"x": {"const": 7}}, "required": ["x"]}
    tools = [{"name": "f", "input_schema": schema, "strict": "true", "defer_loading": "false"}]
    content = ask(thinking, tools=tools, tool_choice={"type": "any"}).json["content"]
    assert {each["input"]["x"] for each in content if each["type"] == "tool_use"} == {7}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("server_error", 500, "api_error"),
        ("overloaded", 503, "overloaded_error"),
        ("rate_limit", 429, "rate_limit_error"),
        ("context_length", 400, "invalid_request_error"),
    ],
)
def test_faults_have_anthropics_error_format(server: TestServer, path: str, fault: str, status: int, kind: str) -> None:
    body = {"model": "m", "max_tokens": 2, "messages": [USER]}
    reply = call(server, "POST", path, body, {"x-blis-fault": fault})
    assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (status, "error", kind)
    assert reply.json["error"].keys() == {"type", "message"}


def test_a_mistake_inside_has_anthropics_error_format(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("nothing")

    monkeypatch.setattr("mockserve.routes.messages.chat_body", fail)
    reply = ask(server)
    assert (reply.status, reply.json) == (
        500,
        {"type": "error", "error": {"type": "api_error", "message": "'nothing'"}},
    )
    assert reply.headers["vary"] == "Origin"


def test_a_conversation_can_be_rendered(thinking: TestServer) -> None:
    body = {"model": "m", "max_tokens": 3, "messages": [USER]}
    rendered = call(thinking, "POST", "/v1/messages/render", body).json
    assert len(rendered["token_ids"]) == call(thinking, "POST", "/v1/messages/count_tokens", body).json["input_tokens"]


def test_a_batch_has_one_choice_for_each_conversation(server: TestServer) -> None:
    body = {"model": "m", "messages": [[USER], [USER, {"role": "assistant", "content": "a"}, USER]], "max_tokens": 3}
    reply = call(server, "POST", "/v1/chat/completions/batch", body).json
    assert [each["index"] for each in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] == 6
    assert call(server, "POST", "/v1/chat/completions/batch", {**body, "n": 2}).json["error"]["param"] == "n"
    for wrong in ([], [USER], "x", None):
        refused = call(server, "POST", "/v1/chat/completions/batch", {**body, "messages": wrong})
        assert refused.json["error"]["param"].startswith("body.messages")


@pytest.mark.parametrize(
    ("fields", "param"), [({"use_beam_search": True}, "use_beam_search"), ({"n": 2}, "n"), ({"n": 0}, "n")]
)
def test_a_batch_gives_one_answer_to_each_conversation(
    thinking: TestServer, fields: dict[str, Any], param: str
) -> None:
    asked = {"messages": [[{"role": "user", "content": "a"}]] * 2, "max_tokens": 2}
    refused = call(thinking, "POST", "/v1/chat/completions/batch", {**asked, **fields})
    assert (refused.status, refused.json["error"]["param"]) == (400, param)
    reply = call(thinking, "POST", "/v1/chat/completions/batch", asked)
    assert reply.json["usage"]["completion_tokens_details"] is None


def test_a_batch_shows_nothing_of_its_prompts_and_reads_flags_as_texts(server: TestServer) -> None:
    batch = {"messages": [[{"role": "user", "content": "hi"}]], "max_tokens": 1, "logprobs": True, "top_logprobs": "1"}
    further = {"echo": "yes", "return_token_ids": "yes", "continue_final_message": "no"}
    reply = call(server, "POST", "/v1/chat/completions/batch", {**batch, **further}).json
    assert (reply["prompt_token_ids"], reply["prompt_logprobs"]) == (None, None)
    assert len(reply["choices"][0]["token_ids"]) == 1


def test_a_batch_does_not_report_cached_tokens() -> None:
    with running_server(enable_prompt_tokens_details=True) as server:
        batch = {"messages": [[{"role": "user", "content": "hi"}]], "max_tokens": 1}
        usage = call(server, "POST", "/v1/chat/completions/batch", batch).json["usage"]
    assert usage["prompt_tokens_details"] is None


def test_an_invocation_is_routed_by_its_fields(server: TestServer) -> None:
    assert (
        call(server, "POST", "/invocations", {"messages": [USER], "max_tokens": 1}).json["object"] == "chat.completion"
    )
    assert call(server, "POST", "/invocations", {"prompt": "a", "max_tokens": 1}).json["object"] == "text_completion"
    assert call(server, "POST", "/invocations", b"[]").status == 400
    assert call(server, "POST", "/invocations", b"{x").json["error"]["message"].startswith("JSON decode error")
