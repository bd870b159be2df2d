"""The format of streamed tool calls depends on the parser."""

import json
from typing import Any

import pytest

from tests.wire.plain_http import chat, chunks_of
from tests.wire.serving import running_server

FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}
PARTS = {
    "hermes": (["content", "tool_calls"], ["id", "type", "index", "function"], ["name"]),
    "qwen3_coder": (["tool_calls"], ["id", "type", "index", "function"], ["name"]),
    "mistral": (["tool_calls"], ["id", "type", "index", "function"], ["name", "arguments"]),
    "granite4": (["content", "tool_calls"], ["id", "type", "index", "function"], ["name", "arguments"]),
}
"""By parser: the keys of the delta that brings the name, of the call in it, and of its function."""


@pytest.mark.parametrize("parser", PARTS)
def test_a_stream_brings_the_name_as_the_parser_does(parser: str) -> None:
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": parser}
    with running_server(**settings, tool_call_extra_probability=0.0) as server:
        chunks = chunks_of(chat(server, **TOOLS, stream=True).body)
    deltas = [each["choices"][0]["delta"] for each in chunks]
    calls = [each for each in deltas if "tool_calls" in each]
    (first,) = calls[0]["tool_calls"]
    assert (list(calls[0]), list(first), list(first["function"])) == PARTS[parser]
    arguments = "".join(each["tool_calls"][0]["function"].get("arguments", "") for each in calls)
    assert isinstance(json.loads(arguments), dict)
    assert parser != "granite4" or len(calls) == 1


def test_a_call_of_cohere_without_arguments_has_an_empty_text_for_them() -> None:
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "cohere_command3"}
    nothing = {"type": "function", "function": {"name": "stop"}}
    with running_server(**settings, tool_call_extra_probability=0.0) as server:
        whole = chat(server, tools=[nothing]).json["choices"][0]
        chunks = chunks_of(chat(server, tools=[nothing], stream=True).body)
    assert (whole["message"]["tool_calls"][0]["function"]["arguments"], whole["finish_reason"]) == ("", "tool_calls")
    (called,) = [
        each["choices"][0]["delta"]["tool_calls"][0] for each in chunks if "tool_calls" in each["choices"][0]["delta"]
    ]
    assert called["function"] == {"name": "stop"}


def test_kimis_calls_are_numbered_through_the_conversation() -> None:
    earlier = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [earlier, earlier]},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
        {"role": "user", "content": "again"},
    ]
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "kimi_k2"}
    with running_server(**settings, tool_call_extra_probability=1.0) as server:
        found = chat(server, **TOOLS, messages=messages).json["choices"][0]["message"]["tool_calls"]
    assert [each["id"] for each in found] == [f"functions.look:{number + 2}" for number in range(len(found))]
    assert len(found) > 1
