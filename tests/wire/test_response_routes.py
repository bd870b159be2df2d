"""Responses in the foreground and background, complete and as events, and their retrieval."""

import http.client
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import PlainReply, call, events_of
from tests.wire.serving import TestServer, running_server

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}


@pytest.fixture(scope="module")
def keeping() -> Iterator[TestServer]:
    """A server that keeps responses, reasons and calls functions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
        with running_server(
            enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="deepseek_r1", speed=3.0
        ) as running:
            assert running.service.environment.stores_responses
            patch.undo()  # another server of this module has no store
            yield running


def respond(server: TestServer, **fields: Any) -> PlainReply:
    return call(server, "POST", "/v1/responses", {"model": "m", "input": "hello there", **fields})


def reported(reply: PlainReply) -> list[Any]:
    """The events of a stream; their names must be their types."""
    events = [each.split("\ndata: ", 1) for each in events_of(reply.body)]
    found = [(name.removeprefix("event: "), json.loads(data)) for name, data in events]
    assert all(name == event["type"] for name, event in found)
    return [event for _, event in found]


def ask(server: TestServer, response_id: str, how: str = "") -> PlainReply:
    return call(server, "GET", f"/v1/responses/{response_id}{how}")


def wait_for(server: TestServer, response_id: str) -> Any:
    """A response in the background, once it is done."""
    wait_until(lambda: ask(server, response_id).json["status"] not in ("queued", "in_progress"))
    return ask(server, response_id).json


def test_an_answer_that_is_cut_short_is_incomplete(server: TestServer) -> None:
    body = respond(server, max_output_tokens=4).json
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["output_tokens"] == 4 == body["max_output_tokens"]


def test_a_response_repeats_what_its_answer_was_drawn_with(server: TestServer) -> None:
    defaults = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    given = {"temperature": 0.5, "top_p": 0.25, "presence_penalty": 0.75, "frequency_penalty": -1.5}
    for asked, drawn_with in (({}, defaults), (given, given)):
        body = respond(server, max_output_tokens=1, **asked).json
        assert {name: body[name] for name in defaults} == drawn_with


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"parallel_tool_calls": "off"}, {"parallel_tool_calls": False}),
        ({"max_tool_calls": "3"}, {"max_tool_calls": 3}),
        ({"max_tool_calls": 3.0}, {"max_tool_calls": 3}),
        (
            {"reasoning": {"a": 1}},
            {"reasoning": dict.fromkeys(("context", "effort", "generate_summary", "mode", "summary")) | {"a": 1}},
        ),
    ],
)
def test_a_response_repeats_values_as_they_were_read(
    server: TestServer, fields: dict[str, Any], shown: dict[str, Any]
) -> None:
    body = respond(server, max_output_tokens=1, **fields).json
    assert json.dumps({name: body[name] for name in shown}) == json.dumps(shown)


@pytest.mark.parametrize("further", [{}, {"temperature": "x"}])
@pytest.mark.parametrize(
    ("constraints", "found"), [({}, "none are"), ({"json": {}, "regex": "a"}, "multiple are"), ({"x": 1}, "none are")]
)
def test_constraints_of_a_response_are_counted_first(
    server: TestServer, constraints: dict[str, Any], found: str, further: dict[str, Any]
) -> None:
    refused = respond(server, structured_outputs=constraints, **further)
    assert refused.status == 400
    assert f"use one kind of structured outputs constraint but {found} specified: " in refused.json["error"]["message"]


def test_events_are_numbered_and_end_with_the_whole_response(server: TestServer) -> None:
    events = reported(respond(server, max_output_tokens=4, stream=True, temperature=0))
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    final = events[-1]["response"]
    assert (events[-1]["type"], final["output"][0]["content"][0]["text"]) == ("response.incomplete", text)
    whole = respond(server, max_output_tokens=4, temperature=0).json
    assert whole["output"][0]["content"][0]["text"] == text


def test_log_probabilities_come_with_each_part_and_with_the_whole(server: TestServer) -> None:
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}
    whole = respond(server, **wanted).json
    assert len(whole["output"][0]["content"][0]["logprobs"]) == 3
    assert whole["top_logprobs"] == 2
    events = reported(respond(server, **wanted, stream=True))
    deltas = [each["logprobs"] for each in events if each["type"] == "response.output_text.delta"]
    assert [len(each) for each in deltas] == [1, 1, 1]
    assert all(set(each[0]) == {"token", "logprob", "top_logprobs"} for each in deltas)


def test_thoughts_and_calls_are_items_of_their_own(keeping: TestServer) -> None:
    body = respond(keeping, tools=[FUNCTION], tool_choice="required").json
    assert [each["type"] for each in body["output"]][:2] == ["reasoning", "function_call"]
    json.loads(body["output"][1]["arguments"])
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_each_item_of_a_stream_ends_before_the_next_begins(keeping: TestServer) -> None:
    events = reported(respond(keeping, tools=[FUNCTION], tool_choice="required", stream=True))
    open_items: list[str] = []
    for each in events:
        if each["type"] == "response.output_item.added":
            assert not open_items
            open_items.append(each["item"]["id"])
        elif each["type"] == "response.output_item.done":
            assert open_items == [each["item"]["id"]]
            open_items.clear()
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    arguments = "".join(each["delta"] for each in events if each["type"] == "response.function_call_arguments.delta")
    assert arguments == "".join(each["arguments"] for each in done if each["type"] == "function_call")


def test_results_of_calls_are_answered(keeping: TestServer) -> None:
    call_item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "42"}
    user = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    body = respond(keeping, input=[user, call_item, result], tools=[FUNCTION]).json
    assert body["output"][-1]["type"] == "message"


def test_a_response_that_was_kept_can_be_asked_for_and_continued(keeping: TestServer) -> None:
    first = respond(keeping, max_output_tokens=30).json
    assert ask(keeping, first["id"]).json == first
    second = respond(keeping, previous_response_id=first["id"], max_output_tokens=3).json
    alone = respond(keeping, max_output_tokens=3).json
    assert second["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]


def test_a_server_without_a_store_has_no_response(server: TestServer) -> None:
    first = respond(server, max_output_tokens=3).json
    reply = ask(server, first["id"])
    assert (reply.status, reply.json["error"]["param"]) == (404, "response_id")
    assert respond(server, background=True).json["error"]["param"] == "background"


def test_a_response_in_the_background_is_queued_then_done(keeping: TestServer) -> None:
    body = respond(keeping, background=True, max_output_tokens=20).json
    assert (body["status"], body["output"]) == ("queued", [])
    done = wait_for(keeping, body["id"])
    assert done["status"] in ("completed", "incomplete")
    assert done["output"]


def test_a_response_in_the_background_can_be_cancelled_once(keeping: TestServer) -> None:
    body = respond(keeping, background=True, ignore_eos=True, max_output_tokens=1500).json
    cancel = f"/v1/responses/{body['id']}/cancel"
    assert call(keeping, "POST", cancel).json["status"] == "cancelled"
    assert ask(keeping, body["id"]).json["status"] == "cancelled"
    assert call(keeping, "POST", cancel).status == 400


def test_the_events_of_a_response_in_the_background_can_be_had_again(keeping: TestServer) -> None:
    events = reported(respond(keeping, background=True, stream=True, max_output_tokens=20))
    response_id = events[0]["response"]["id"]
    assert reported(ask(keeping, response_id, "?stream=true")) == events
    assert reported(ask(keeping, response_id, "?stream=true&starting_after=3")) == events[4:]
    assert reported(ask(keeping, response_id, "?stream=true&starting_after=3.0")) == events[4:]
    assert wait_for(keeping, response_id)["output"] == events[-1]["response"]["output"]


@pytest.mark.parametrize("query", ["?stream=true", "?stream=1&starting_after=2"])
@pytest.mark.parametrize("was_streamed", [False, True])
def test_the_events_of_a_response_in_the_foreground_begin_and_are_cut(
    keeping: TestServer, was_streamed: bool, query: str
) -> None:
    first = respond(keeping, max_output_tokens=3, stream=was_streamed)
    response_id = reported(first)[0]["response"]["id"] if was_streamed else first.json["id"]
    connection = http.client.HTTPConnection(keeping.host, keeping.port, timeout=PATIENCE_S)
    connection.request("GET", f"/v1/responses/{response_id}{query}")
    reply = connection.getresponse()
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    with pytest.raises(http.client.IncompleteRead) as cut:
        reply.read()
    assert cut.value.partial == b""
    connection.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_response_follows_a_stored_one_or_given_messages_but_not_both(keeping: TestServer, streams: bool) -> None:
    both = {"previous_response_id": "resp_x", "previous_input_messages": [{"role": "user", "content": "z"}]}
    error = respond(keeping, **both, stream=streams).json["error"]
    assert error["message"] == "Only one of `previous_input_messages` and `previous_response_id` can be set."
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "previous_response_id", 400)
    assert respond(keeping, previous_input_messages=[], previous_response_id="resp_x").status == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]}, "tool_choice"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"presence_penalty": 3}, "body.presence_penalty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"json": {}}}, "structured_outputs"),
    ],
)
def test_an_unsupported_option_is_refused_by_name(server: TestServer, fields: dict[str, Any], param: str) -> None:
    reply = respond(server, **fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        (FUNCTION | {"mine": 1}, ["name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading"]),
        ({"type": "web_search"}, ["type", "external_web_access", "filters", "search_context_size", "user_location"]),
        ({"type": "shell"}, ["type", "allowed_callers", "environment"]),
    ],
)
def test_tools_are_repeated_with_all_their_fields(server: TestServer, tool: dict[str, Any], fields: list[str]) -> None:
    (shown,) = respond(server, tools=[tool], max_output_tokens=1).json["tools"]
    assert list(shown)[: len(fields)] == fields
    assert {name: value for name, value in shown.items() if value is not None} == tool


@pytest.mark.parametrize(
    ("fields", "num_problems", "place"),
    [
        ({"tools": [{"type": "nope"}]}, 27, "body.tools.0.FunctionTool.name"),
        ({"tools": [FUNCTION, {"type": "mcp"}]}, 26, "body.tools.1.FunctionTool.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "zzz"}}, 14, "body.tool_choice"),
    ],
)
def test_a_tool_of_no_form_is_refused_with_a_report_on_all(
    server: TestServer, fields: dict[str, Any], num_problems: int, place: str
) -> None:
    reply = respond(server, **fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, place)
    assert reply.json["error"]["message"].startswith(f"{num_problems} validation errors:")


def test_a_form_that_is_asked_for_is_kept(keeping: TestServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    body = respond(keeping, text=wanted).json
    assert isinstance(json.load(io.StringIO(body["output"][-1]["content"][0]["text"]))["n"], int)
