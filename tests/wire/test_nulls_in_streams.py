"""Parsers whose streams have nulls (ids within a call, reasoning beside content), asked through other interfaces."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mockserve.reply.call_style import STYLES, LaterPart
from tests.wire.plain_http import call
from tests.wire.serving import running_server

NULL_ID_PARSERS = sorted(name for name, style in STYLES.items() if style.part is LaterPart.NULL_ID)
PARAMETERS = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "far": {"type": "integer"}},
    "required": ["at", "far"],
}
CALL_EVENTS = {
    "/v1/responses": [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        *("response.output_item.done", "response.completed"),
    ],
    "/v1/messages": [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ],
}
"""By path: the events of one call as a genuine vLLM sends them under pythonic, deltas in a row as one."""


def _body(path: str) -> Mapping[str, Any]:
    asked = {"model": "m", "temperature": 0, "stream": True}
    if path == "/v1/responses":
        tool = {"type": "function", "name": "look", "parameters": PARAMETERS}
        return {**asked, "input": "hi", "tools": [tool], "max_output_tokens": 300}
    tool = {"name": "look", "input_schema": PARAMETERS}
    return {**asked, "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "max_tokens": 300}


def _kinds(text: str) -> Sequence[str]:
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    return [kind for number, kind in enumerate(kinds) if number == 0 or kind != kinds[number - 1]]


def _arguments(text: str) -> str:
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [each["delta"] for each in events if each["type"].endswith("delta") and each["type"] != "message_delta"]
    return "".join(each if isinstance(each, str) else each["partial_json"] for each in deltas)


@pytest.mark.parametrize("parser", NULL_ID_PARSERS)
@pytest.mark.parametrize("path", list(CALL_EVENTS))
def test_null_id_begins_no_call(path: str, parser: str) -> None:
    settings: dict[str, Any] = {"tool_call_extra_probability": 0.0, "tool_call_parser": parser}
    with running_server(enable_auto_tool_choice=True, **settings) as server:
        text = call(server, "POST", path, _body(path)).body.decode()
    assert _kinds(text) == CALL_EVENTS[path]
    assert set(json.loads(_arguments(text))) == {"at", "far"}


def test_null_reasoning_is_no_reasoning() -> None:
    body = {"model": "m", "input": "hi", "max_output_tokens": 600, "stream": True}
    with running_server(reasoning_parser="granite", default_reasoning_tokens=5, default_output_tokens=6) as server:
        text = call(server, "POST", "/v1/responses", body).body.decode()
    assert _kinds(text)[-1] == "response.completed"
    assert [each for each in _kinds(text) if each.endswith("text.done")] == [
        "response.reasoning_text.done",
        "response.output_text.done",
    ]


def test_mark_that_brings_empty_reasoning_begins_the_item() -> None:
    body = {"model": "m", "input": "hi", "max_output_tokens": 600, "stream": True}
    with running_server(reasoning_parser="olmo3", default_reasoning_tokens=5, default_output_tokens=6) as server:
        text = call(server, "POST", "/v1/responses", body).body.decode()
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [each["delta"] for each in events if each["type"] == "response.reasoning_text.delta"]
    (done,) = [each["text"] for each in events if each["type"] == "response.reasoning_text.done"]
    assert (deltas[0], "".join(deltas)) == ("", done)
    assert done
