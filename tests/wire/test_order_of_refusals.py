"""Of several mistakes in one request, the one that vLLM 0.33 names."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

CHAT, TEXT, TOKENS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/responses"
UNTRUSTED = "Chat template is passed with request, but --trust-request-chat-template is not set."
PATTERNS = "max_pattern_size, min_pattern_size must be >=0"
WRONG_PARTS = [{"role": "user", "content": [{"type": "smell"}]}]
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
UNREADABLE_CALL = {"role": "assistant", "content": "x", "tool_calls": [{"id": "a", "type": "function", "function": 0}]}
REPETITION = {"max_pattern_size": 1, "min_pattern_size": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server() as running:
        yield running


def assistant(**members: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": None, **members}]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, {"model": "x", "messages": WRONG_PARTS}, 404, "The model `x` does not exist."),
        (CHAT, {"messages": WRONG_PARTS, "chat_template": "x"}, 400, UNTRUSTED),
        (
            CHAT,
            {"messages": WRONG_PARTS, "tools": [TOOL], "tool_choice": TOOL},
            400,
            'tool_choice=function "f" ',
        ),
        (CHAT, {"messages": [USER], "chat_template": "x", "mm_processor_kwargs": {"a": 1}}, 400, UNTRUSTED),
        (CHAT, {"messages": WRONG_PARTS, "max_tokens": 10**9}, 400, "max_tokens=1000000000 cannot be greater than"),
        (TOKENS, {"messages": [USER, UNREADABLE_CALL], "chat_template": "x"}, 400, UNTRUSTED),
        (CHAT, {"messages": [None], "repetition_detection": REPETITION}, 400, PATTERNS),
        (TEXT, {"prompt": [5, "a"], "repetition_detection": REPETITION}, 400, PATTERNS),
        (CHAT, {"messages": [USER, UNREADABLE_CALL, *WRONG_PARTS]}, 400, "3 validation errors:"),
        (CHAT, {"messages": assistant(function_call=0)}, 400, "20 validation errors:"),
        (CHAT, {"messages": assistant(function_call={"name": "f", "arguments": 1})}, 400, "20 validation errors:"),
        (CHAT, {"messages": assistant(audio={"id": 3})}, 400, "20 validation errors:"),
        (CHAT, {"messages": [{"role": 7, "content": ["a"]}]}, 400, "12 validation errors:"),
        (
            TEXT,
            {"prompt": "a", "cache_salt": "x" * 300, "structured_outputs": {"a": 1}},
            400,
            "Parameter 'cache_salt'",
        ),
        (TEXT, {"prompt": [2**40], "temperature": -2}, 400, "temperature must be non-negative, got -2.0."),
        (TOKENS, {"model": "x", "messages": [USER, UNREADABLE_CALL]}, 404, "The model `x` does not exist."),
        (
            RESPONSES,
            {"input": "hi", "tools": {"a": 1}, "tool_choice": {"type": "custom", "name": "z"}},
            400,
            "Tool choice 'function' not found in 'tools' parameter.",
        ),
    ],
)
def test_the_mistake_that_vllm_finds_first_is_named(
    path: str, body: dict[str, Any], status: int, words: str, server: TestServer
) -> None:
    reply = call(server, "POST", path, body)
    assert reply.status == status, reply.body
    assert reply.json["error"]["message"].startswith(words)
    streamed = call(server, "POST", path, {**body, "stream": True})
    assert streamed.status == status, streamed.body


def test_a_response_shows_its_prompt_as_the_template_wrote_it(server: TestServer) -> None:
    body = {"input": "hi", "max_output_tokens": 2, "enable_response_messages": True}
    (message,) = call(server, "POST", RESPONSES, body).json["input_messages"]
    chat = {"messages": [USER], "max_tokens": 1, "return_prompt_text": True}
    assert message["message"] == call(server, "POST", CHAT, chat).json["prompt_text"]
