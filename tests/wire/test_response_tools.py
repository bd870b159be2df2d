"""Calls of custom tools and of functions in namespaces, as a genuine vLLM names them in a response and its events."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mockserve.protocol.responses import custom_input, partial_custom_input
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

CUSTOM = {"type": "custom", "name": "patch", "description": "d"}
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
SPACE = {
    "type": "namespace",
    "name": "n",
    "description": "d",
    "tools": [{"type": "function", "name": "q", "parameters": PARAMETERS}],
}
CUSTOM_KEYS = ["call_id", "input", "name", "type", "id", "async", "caller", "namespace"]
CUSTOM_EVENTS = [
    *("response.created", "response.in_progress", "response.output_item.added"),
    *("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "response.output_item.done"),
    "response.completed",
]
"""Deltas in a row as one."""


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(enable_auto_tool_choice=True, tool_call_parser="hermes") as running:
        yield running


def _asked(server: TestServer, tools: list[Any], stream: bool = False) -> bytes:
    body = {"model": "m", "input": "hi", "tools": tools, "tool_choice": "required", "seed": 1, "stream": stream}
    return call(server, "POST", "/v1/responses", {**body, "max_output_tokens": 300}).body


def test_custom_tool_is_called_with_its_input_as_text(server: TestServer) -> None:
    (item,) = json.loads(_asked(server, [CUSTOM]))["output"]
    assert list(item) == CUSTOM_KEYS
    assert (item["type"], item["name"]) == ("custom_tool_call", "patch")
    assert item["id"].startswith("ctc_")
    assert item["input"]
    assert not item["input"].startswith("{")


def test_events_of_custom_tool_add_up_to_its_input(server: TestServer) -> None:
    lines = [each for each in _asked(server, [CUSTOM], stream=True).decode().splitlines() if each.startswith("data: {")]
    events = [json.loads(each.removeprefix("data: ")) for each in lines]
    kinds = [each["type"] for each in events]
    assert [kind for number, kind in enumerate(kinds) if number == 0 or kind != kinds[number - 1]] == CUSTOM_EVENTS
    deltas = "".join(each["delta"] for each in events if each["type"].endswith("input.delta"))
    assert deltas == events[-1]["response"]["output"][0]["input"]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))


def test_function_of_namespace_is_named_without_it(server: TestServer) -> None:
    (item,) = json.loads(_asked(server, [SPACE]))["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "n", "q")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\n\\u00e9"}', "a\né"),
        ('{"input": 3}', '{"input": 3}'),
        ("no json", "no json"),
        ("[1]", "[1]"),
    ],
)
def test_input_of_custom_tool_is_read_from_its_arguments(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"inp', ""),
        ('{"input": "', ""),
        ('{"input": "ab', "ab"),
        ('{"input": "ab\\', "ab"),
        ('{"input": "ab\\u00', "ab"),
        ('{"input": "ab\\ud83d', "ab"),
        ('{"input": "ab\\ud83d\\ude00', "ab\U0001f600"),
        ('{"input": "ab\\\\"}', "ab\\"),
    ],
)
def test_begun_input_has_whole_characters_only(arguments: str, text: str) -> None:
    assert partial_custom_input(arguments) == text
