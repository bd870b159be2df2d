"""Mistakes deep in a body are refused if vLLM refuses them, and never cause an internal error.

The statuses are those of a genuine server for the same bodies.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.wire.internal_errors import is_vllms_own_error
from tests.wire.plain_http import PlainReply, call
from tests.wire.serving import TestServer, running_server
from tests.wire.test_fuzz import json_values

TURN = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "x"},
]
MESSAGES: dict[str, Any] = {
    "model": "m",
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TURN | {"type": "text"}]}],
        },
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "thinking": {"type": "disabled"},
}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    TURN,
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT_TURNS, "tools": [TOOL], "tool_choice": "auto", "response_format": FORMAT},
    "/v1/chat/completions/batch": {"messages": [[TURN], CHAT_TURNS], "response_format": FORMAT},
    "/v1/completions": {"prompt": [[1, 2], [3]], "structured_outputs": {"choice": ["a"]}, "logit_bias": {"5": 1}},
    "/v1/responses": {"input": ITEMS, "tools": [{"type": "function", "name": "f"}], "text": {"verbosity": "low"}},
    "/v1/messages": {**MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": MESSAGES,
    "/tokenize": {"messages": CHAT_TURNS, "tools": [TOOL], "chat_template_kwargs": {"a": 1}},
    "/detokenize": {"tokens": [1, 2]},
}
SHORT = {
    "/v1/chat/completions": {"max_tokens": 2},
    "/v1/completions": {"max_tokens": 2},
    "/v1/responses": {"max_output_tokens": 2},
}
SHORT["/v1/chat/completions/batch"] = {"max_tokens": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(enable_auto_tool_choice=True, tool_call_parser="hermes") as server:
        yield server


def ask(server: TestServer, path: str, **fields: Any) -> PlainReply:
    return call(server, "POST", path, {"model": "m", **SHORT.get(path, {}), **fields})


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside of another."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from places(inner, (*above, key))


def with_value(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(body)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return dict(changed)


@pytest.mark.parametrize("path", BODIES)
def test_unchanged_bodies_are_accepted(server: TestServer, path: str) -> None:
    assert ask(server, path, **BODIES[path]).status == 200


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(st.sampled_from(list(BODIES)), st.data())
def test_no_value_anywhere_makes_the_server_fail(server: TestServer, path: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(list(places(BODIES[path]))))
    body = with_value(BODIES[path], place, data.draw(json_values))
    reply = ask(server, path, **body)
    assert reply.status < 500 or is_vllms_own_error(body, reply.body), (json.dumps(body), reply.body)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ([{"type": "text", "text": "a"}], 200),
        ([{"type": "tool_reference", "name": "a"}], 200),
        ([{"type": "input_text", "text": "a"}], 400),
        ([{"type": ["text"], "text": "a"}], 400),
    ],
)
def test_parts_of_a_chat_message_are_chats_own(server: TestServer, content: Any, status: int) -> None:
    assert ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": content}]).status == status
    assert ask(server, "/tokenize", messages=[{"role": "user", "content": content}]).status == status


@pytest.mark.parametrize(
    "calls", ["x", {"a": 1}, [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]]
)
def test_calls_of_a_chat_message_are_function_calls(server: TestServer, calls: Any) -> None:
    messages = [TURN, {"role": "assistant", "tool_calls": calls}, TURN]
    assert ask(server, "/v1/chat/completions", messages=messages).status == 400
    assert ask(server, "/tokenize", messages=messages).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 5}, "body.prompt"),
        ({"messages": ["a"]}, "body.prompt"),
        ({"messages": [TURN], "tools": [{}]}, "body.prompt"),
        ({"messages": [TURN], "add_generation_prompt": None}, "body.prompt"),
        ({"prompt": "a", "add_special_tokens": None}, "body.add_special_tokens"),
        ({"prompt": "a", "media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ({"prompt": "\ud800"}, None),
    ],
)
def test_text_that_cannot_be_tokenized_is_refused(
    server: TestServer, fields: dict[str, Any], param: str | None
) -> None:
    reply = ask(server, "/tokenize", **fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("messages", [[], ["a"], [{}]])
def test_a_text_is_tokenized_whatever_its_messages(server: TestServer, messages: list[Any]) -> None:
    assert ask(server, "/tokenize", prompt="a", messages=messages).json == ask(server, "/tokenize", prompt="a").json


@pytest.mark.parametrize(
    ("item", "status"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}]}, 200),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, 400),
        ({"role": "user", "content": [{"type": "output_text", "text": "a"}]}, 400),
        ({"role": "tool", "content": "a"}, 400),
        ({"role": "user"}, 400),
        ({"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, 400),
        ({"role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "a"}]}, 200),
        ({"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "a"}]}, 200),
        ({"type": "function_call_output", "output": "a"}, 200),
        ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, 400),
        ({"type": "function_call", "call_id": "c", "name": "f"}, 400),
        ({"type": "reasoning"}, 400),
        ({"type": "nothing", "role": "user", "content": "a"}, 400),
    ],
)
def test_items_of_a_response_have_their_own_forms(server: TestServer, item: dict[str, Any], status: int) -> None:
    assert ask(server, "/v1/responses", input=[TURN, item, TURN]).status == status


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "s"}}},
            "body.text.format.ResponseFormatText.type",
        ),
        ("/v1/responses", {"input": "a", "watermarking": "x"}, "body.watermarking"),
        ("/v1/responses", {"input": "a", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ("/v1/messages/count_tokens", {"messages": [TURN], "thinking": {}}, "body.thinking"),
        ("/v1/messages/count_tokens", {"messages": [TURN], "output_config": 5}, "body.output_config"),
        ("/v1/chat/completions", {"messages": [TURN], "stream": 2.0}, "body.stream"),
        ("/v1/chat/completions", {"messages": [TURN], "tools": 5, "tool_choice": TOOL}, None),
    ],
)
def test_an_item_without_a_form_is_refused(
    server: TestServer, path: str, fields: dict[str, Any], param: str | None
) -> None:
    reply = ask(server, path, **fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("described", [{"name": "s"}, {"name": "s", "schema": None}])
def test_a_response_format_without_a_schema_is_no_constraint(server: TestServer, described: dict[str, Any]) -> None:
    wanted = {"type": "json_schema", "json_schema": described}
    reply = ask(server, "/v1/chat/completions", messages=[TURN], response_format=wanted)
    assert reply.json["error"]["message"].startswith("You must use one kind of structured outputs constraint but none")
    constraint = {"choice": ["a"]}
    assert (
        ask(server, "/v1/completions", prompt="a", response_format=wanted, structured_outputs=constraint).status == 200
    )
