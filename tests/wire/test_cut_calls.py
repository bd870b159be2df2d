"""Tool calls cut by `max_tokens`, under parsers of each kind, equal those of a genuine server."""

from typing import Any

import pytest

from tests.wire.plain_http import chat, chunks_of
from tests.wire.serving import TestServer, running_server

SCHEMA = {"type": "object", "properties": {"x": {"enum": ["some words"]}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "look"}}
LIMITS = range(1, 30)


def last_deltas(server: TestServer) -> list[dict[str, Any]]:
    """The last delta of a stream that is cut after each number of tokens."""
    found = []
    for limit in LIMITS:
        chunks = chunks_of(chat(server, tools=TOOLS, max_tokens=limit, stream=True).body)
        found.append(chunks[-1]["choices"][0]["delta"])
    return found


@pytest.mark.parametrize(("parser", "arguments"), [("hermes", "{}"), ("glm45", "{}"), ("deepseek_v3", "")])
def test_a_stream_that_is_cut_at_a_name_brings_an_empty_object(parser: str, arguments: str) -> None:
    with running_server(enable_auto_tool_choice=True, tool_call_parser=parser) as server:
        functions = [each["tool_calls"][-1]["function"] for each in last_deltas(server) if each.get("tool_calls")]
    named = [each for each in functions if each.get("name")]
    assert named == [{"name": "look", "arguments": arguments}]


def test_the_end_of_reasoning_brings_the_name_of_a_named_function_without_arguments() -> None:
    settings: dict[str, Any] = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "pythonic",
        "default_reasoning_tokens": 5,
    }
    with running_server(**settings, reasoning_parser="qwen3") as server:
        chunks = chunks_of(chat(server, tools=TOOLS, tool_choice=NAMED, stream=True).body)
    calls = [each["choices"][0]["delta"].get("tool_calls") for each in chunks]
    first = next(each for each in calls if each)
    assert first[0]["function"] == {"name": "look", "arguments": ""}


def test_more_tokens_than_a_context_has_are_refused_before_the_prompt_is_made() -> None:
    with running_server(trust_request_chat_template=True, max_model_len=512) as server:
        for fields in ({"chat_template": "{{ 1/0 }}"}, {"messages": [{"role": "user", "content": "word " * 600}]}):
            error = chat(server, max_tokens=513, **fields).json["error"]
            assert error["message"].startswith("max_tokens=513 cannot be greater than max_model_len=512.")
