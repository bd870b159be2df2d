"""vLLM counts what its parser of tool calls is used for: whole choices, and the events of streams."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.wire.plain_http import call, chat, chunks_of
from tests.wire.serving import TestServer, running_server

NAME = "vllm:tool_call_parser_invocations_total"
PARSERS: dict[str, Any] = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "deepseek_r1",
}
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}


def uses(server: TestServer) -> Mapping[str, float]:
    """Return the counts, by the labels that are not always the same; without zeros."""
    lines = call(server, "GET", "/metrics").body.decode().splitlines()
    found = [line.removeprefix(NAME).rpartition(" ") for line in lines if line.startswith(NAME)]
    return {_labels(labels): float(value) for labels, _, value in found if float(value)}


def _labels(text: str) -> str:
    found = dict(each.split("=") for each in text.strip("{}").replace('"', "").split(","))
    return " ".join(found[name] for name in ("request_type", "mode", "outcome"))


def test_a_server_without_a_parser_has_no_such_metric() -> None:
    with running_server() as server:
        assert NAME not in call(server, "GET", "/metrics").body.decode()


def test_every_combination_is_there_from_the_start() -> None:
    with running_server(**PARSERS) as server:
        page = call(server, "GET", "/metrics").body.decode()
    assert sum(line.startswith(NAME) and line.endswith(" 0.0") for line in page.splitlines()) == 12


@pytest.mark.parametrize(("probability", "outcome"), [(1.0, "tool_call"), (0.0, "no_tool_call")])
def test_a_whole_choice_counts_once(probability: float, outcome: str) -> None:
    with running_server(**PARSERS, tool_call_probability=probability) as server:
        chat(server, **TOOLS, n=2)
        chat(server)
        chat(server, **TOOLS, tool_choice="none")
        call(server, "POST", "/v1/responses", {"input": "hi", "tools": [{"type": "function", **FUNCTION}]})
        found = uses(server)
    assert found == {f"chat_completions non_streaming {outcome}": 2, f"responses non_streaming {outcome}": 1}


HERMES: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
MESSAGE: dict[str, Any] = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
NAMED = {"name": "look", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/v1/messages", MESSAGE, {"non_streaming": 1}),
        ("/v1/messages", {**MESSAGE, "stream": True}, {"streaming": 4}),
        ("/v1/messages", {**MESSAGE, "tools": [NAMED], "tool_choice": {"type": "none"}}, {}),
        ("/v1/chat/completions", {**MESSAGE, "tool_choice": None}, {"non_streaming": 1}),
        ("/v1/chat/completions", MESSAGE, {}),
    ],
)
def test_a_parser_reads_an_answer_without_tools_if_no_choice_forbids_that(
    path: str, body: Mapping[str, Any], counted: Mapping[str, int]
) -> None:
    with running_server(**HERMES) as server:
        # Each count is the number of tokens; an answer of prose has no end before its limit here.
        assert call(server, "POST", path, {**body, "temperature": 0}).status == 200
        found = uses(server)
    assert found == {f"chat_completions {mode} no_tool_call": number for mode, number in counted.items()}


@pytest.mark.parametrize(("num_tokens", "num_events"), [(1, 1), (4, 2), (5, 3), (8, 4)])
def test_tokens_that_share_an_event_are_parsed_together(num_tokens: int, num_events: int) -> None:
    with running_server(**HERMES, stream_interval=3, tool_call_probability=0.0) as server:
        chat(server, **TOOLS, stream=True, max_tokens=num_tokens, ignore_eos=True)
        found = uses(server)
    assert found == {"chat_completions streaming no_tool_call": num_events}


def test_a_stream_counts_every_token_after_the_reasoning() -> None:
    with running_server(**PARSERS, tool_call_extra_probability=0.0) as server:
        reply = chat(server, **TOOLS, stream=True, stream_options={"include_usage": True}, return_token_ids=True)
        found = uses(server)
    chunks = chunks_of(reply.body)
    parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    num_calls = sum("tool_calls" in part["delta"] for part in parts)
    last_reasoning = max(place for place, part in enumerate(parts) if "reasoning" in part["delta"])
    num_parsed = sum(len(part.get("token_ids") or ()) for part in parts[last_reasoning + 1 :])
    assert found == {
        "chat_completions streaming tool_call": num_calls,
        "chat_completions streaming no_tool_call": num_parsed - num_calls,
    }
