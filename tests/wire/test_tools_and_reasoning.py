"""Tool calls and reasoning as a client reads them, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.lazy import LazyModule
from tests.wire.plain_http import call, chat, chunks_of, events_of
from tests.wire.serving import TestServer, running_server

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module")
def thinker() -> Iterator[TestServer]:
    with running_server(
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        tool_call_extra_probability=0.5,
        default_reasoning_tokens=12,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(thinker: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def check_calls(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), CITY if name == "get_weather" else {"const": {}})


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[dict[int, list[str]], str, str, str | None]:
    """The calls by index as id, name and arguments, the content, the reasoning and the finish reason of a stream."""
    calls: dict[int, list[str]] = {}
    content, reasoning, reason = "", "", None
    for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True, **fields):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning", None) or ""
        reason = chunk.choices[0].finish_reason or reason
        for part in delta.tool_calls or ():
            known = calls.setdefault(part.index, ["", "", ""])
            assert part.function is not None
            known[0] += part.id or ""
            known[1] += part.function.name or ""
            known[2] += part.function.arguments or ""
    return calls, content, reasoning, reason


@pytest.mark.parametrize(
    ("choice", "reason"), [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop"), (None, "tool_calls")]
)
def test_functions_are_called_with_valid_arguments(client: openai.OpenAI, choice: Any, reason: str) -> None:
    wanted = {} if choice is None else {"tool_choice": choice}
    numbers = set()
    for seed in range(8):
        reply = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, seed=seed, **wanted)
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == reason
        assert message.tool_calls
        check_calls(
            [(each.function.name, each.function.arguments) for each in message.tool_calls if each.type == "function"]
        )
        assert message.content == ("" if choice in ("required", NAMED) else None)
        numbers.add(len(message.tool_calls))
    assert (len(numbers) > 1) == (choice is not NAMED)


def test_a_stream_brings_the_same_calls_piece_by_piece(client: openai.OpenAI) -> None:
    for seed in range(6):
        whole = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, seed=seed)
        calls, content, reasoning, reason = streamed(client, tools=TOOLS, seed=seed)
        expected = whole.choices[0].message
        assert [(name, arguments) for _, name, arguments in calls.values()] == [
            (each.function.name, each.function.arguments)
            for each in expected.tool_calls or ()
            if each.type == "function"
        ]
        assert all(each[0].startswith("chatcmpl-tool-") for each in calls.values())
        assert (content, reason) == ("", "tool_calls")
        assert reasoning == getattr(expected, "reasoning", None)


def test_one_call_is_made_where_calls_may_not_be_parallel(client: openai.OpenAI) -> None:
    for seed in range(8):
        calls, *_ = streamed(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(calls) == 1


def test_no_function_is_called_when_none_may_be(client: openai.OpenAI) -> None:
    calls, content, _, reason = streamed(client, tools=TOOLS, tool_choice="none", seed=1)
    assert (calls, bool(content), reason) == ({}, True, "stop")


def test_an_agent_comes_to_its_end(client: openai.OpenAI) -> None:
    messages = list(MESSAGES)
    for _ in range(3):
        message = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        messages += [{"role": "tool", "tool_call_id": each.id, "content": "sunny"} for each in message.tool_calls]
    assert messages[-1]["content"]


def test_calls_fit_a_small_budget_or_are_cut(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "extra_body": {"reasoning_effort": "none"}}
    for seed in range(8):
        reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=32, seed=seed, **body)
        assert reply.choices[0].message.tool_calls
        reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12, seed=seed, **body)
        assert reply.choices[0].finish_reason == "length"
        assert (reply.choices[0].message.content or "").startswith("<tool_call>")


def test_arguments_are_within_the_ranges_of_the_server() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]
    settings: dict[str, Any] = {"min_tool_call_integer_param": 5, "max_tool_call_integer_param": 6}
    settings["tool_call_not_required_param_probability"] = 100
    with running_server(enable_auto_tool_choice=True, tool_call_parser="hermes", **settings) as server:
        for seed in range(6):
            body = {"messages": MESSAGES, "tools": tools, "seed": seed, "max_tokens": 500}
            calls = call(server, "POST", "/v1/chat/completions", body).json["choices"][0]["message"]["tool_calls"]
            assert all(json.loads(each["function"]["arguments"])["n"] in (5, 6) for each in calls)


def test_reasoning_comes_first_and_is_counted(thinker: TestServer) -> None:
    reply = call(thinker, "POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60}).json
    message = reply["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"]
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}
    assert thinker.service.model.planner.tokenizer.count(message["reasoning"]) == 12


def test_reasoning_can_be_limited_hidden_or_switched_off(thinker: TestServer) -> None:
    def ask(**fields: Any) -> tuple[str | None, int]:
        reply = call(thinker, "POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60, **fields}).json
        return reply["choices"][0]["message"]["reasoning"], reply["usage"]["completion_tokens_details"][
            "reasoning_tokens"
        ]

    assert ask(thinking_token_budget=3)[1] == 3
    assert ask(include_reasoning=False) == (None, 12)
    assert ask(reasoning_effort="none") == (None, 0)
    assert ask(chat_template_kwargs={"enable_thinking": False}) == (None, 0)


def deltas(server: TestServer, **fields: Any) -> list[dict[str, Any]]:
    """Return the deltas of the events of a stream, without the first one, which names the role."""
    reply = call(server, "POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True, **fields})
    events = [json.loads(each) for each in events_of(reply.body) if each != "[DONE]"]
    return [each["choices"][0]["delta"] for each in events][1:]


def test_hidden_reasoning_is_a_null_in_every_event_but_the_last(thinker: TestServer) -> None:
    # The keys and their order are those of captured streams.
    *brought, last = deltas(thinker, include_reasoning=False, max_tokens=600)
    assert {tuple(each) for each in brought} == {("content", "reasoning")}
    assert {each["reasoning"] for each in brought} == {None}
    assert last == {}
    *brought, last = deltas(thinker, include_reasoning=False, tools=TOOLS, max_tokens=600)
    assert {tuple(each) for each in brought} == {("content", "reasoning", "tool_calls")}
    assert last == {}


def test_reasoning_that_is_cut_ends_as_in_vllm(thinker: TestServer) -> None:
    assert deltas(thinker, max_tokens=2)[-1].keys() == {"reasoning"}
    assert deltas(thinker, max_tokens=3)[-1] == {}
    assert deltas(thinker, max_tokens=2, include_reasoning=False)[-1] == {}


def test_json_follows_reasoning(client: openai.OpenAI) -> None:
    described: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": CITY}}
    for seed in range(6):
        _, content, reasoning, _ = streamed(client, response_format=described, seed=seed)
        jsonschema.validate(json.loads(content), CITY)
        assert reasoning


def test_a_server_without_the_flags_refuses(server: TestServer) -> None:
    for fields, message in (
        ({"tools": TOOLS}, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ({"tools": TOOLS, "tool_choice": "required"}, 'tool_choice="required" requires --tool-call-parser to be set'),
        ({"tools": TOOLS, "tool_choice": NAMED}, 'tool_choice=function "get_weather" requires --tool-call-parser'),
        ({"thinking_token_budget": 3}, "thinking_token_budget is set but reasoning_config is not configured."),
    ):
        reply = call(server, "POST", "/v1/chat/completions", {"messages": MESSAGES, **fields})
        assert reply.status == 400
        assert reply.json["error"]["message"].startswith(message)


def test_counts_of_reasoning_in_a_stream_leave_out_the_mark_before_it() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with running_server(reasoning_parser="qwen3", default_reasoning_tokens=5, default_output_tokens=4) as server:
        chunks = chunks_of(chat(server, stream=True, stream_options=options).body)
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    numbers = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [max(0, min(number - 1, 5)) for number in numbers]
