"""Of several mistakes in one request, the one that vLLM 0.33 names."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

CHAT, TEXT, TOKENS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/responses"
BATCH = f"{CHAT}/batch"
UNTRUSTED = "Chat template is passed with request, but --trust-request-chat-template is not set."
PATTERNS = "max_pattern_size, min_pattern_size must be >=0"
WRONG_PARTS = [{"role": "user", "content": [{"type": "smell"}]}]
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
UNREADABLE_CALL = {"role": "assistant", "content": "x", "tool_calls": [{"id": "a", "type": "function", "function": 0}]}
REPETITION = {"max_pattern_size": 1, "min_pattern_size": 2}
FORMAL = {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}}


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
        (
            RESPONSES,
            {"input": "hi", "tools": [FORMAL], "tool_choice": {"type": "function", "name": "z"}},
            400,
            "Tool choice 'function' not found in 'tools' parameter.",
        ),
        (RESPONSES, {"input": "hi", "tools": [FORMAL], "prompt": {"id": "p"}}, 400, "Custom tools with a grammar"),
        (CHAT, {"messages": WRONG_PARTS, "truncate_prompt_tokens": 10**9}, 400, "truncate_prompt_tokens=1000000000 "),
        (CHAT, {"messages": [{"author": {"role": "user"}, "content": []}]}, 400, "'Message' object is not subscriptab"),
        (CHAT, {"messages": [{"author": {"role": "critic"}, "content": []}]}, 400, "11 validation errors:"),
        (TOKENS, {"messages": [{"author": "user", "content": []}]}, 400, "12 validation errors:"),
        (RESPONSES, {"input": "hi", "reasoning": {"context": "x", "mode": 1}}, 400, "3 validation errors:"),
        (TEXT, {"model": "x", "prompt": []}, 404, "The model `x` does not exist."),
        (TEXT, {"model": "x", "prompt": "a", "suffix": "b"}, 404, "The model `x` does not exist."),
        (TEXT, {"model": "x", "prompt": "a", "prompt_embeds": "AAAA"}, 404, "The model `x` does not exist."),
        (TEXT, {"model": "x", "prompt": "a", "logit_bias": {"a": 1}}, 404, "The model `x` does not exist."),
        (TEXT, {"prompt": "a", "suffix": "b", "prompt_embeds": "AAAA"}, 400, "suffix is not supported with prompt_em"),
        (TEXT, {"prompt": "a", "suffix": "b", "truncate_prompt_tokens": 1}, 400, "suffix is not supported with trunc"),
        (TEXT, {"prompt": [5], "suffix": "b"}, 400, "suffix requires text prompt input for FIM completion rendering"),
        (TEXT, {"prompt": "a", "mm_processor_kwargs": {"a": 1}}, 400, "Per-request mm_processor_kwargs are disabled"),
        (TEXT, {"prompt": "a", "prompt_embeds": "AAAA", "max_tokens": 10**9}, 400, "max_tokens=1000000000 cannot"),
        (TEXT, {"prompt": [], "max_tokens": 10**9}, 400, "max_tokens=1000000000 cannot"),
        (TEXT, {"prompt": []}, 400, "You must pass at least one prompt"),
        (TEXT, {"prompt_embeds": [""]}, 400, "You must set `--enable-prompt-embeds` to input `prompt_embeds`."),
        (TEXT, {"prompt": "a", "logit_bias": {"a": 1}, "temperature": -1}, 400, "logit_bias contains key(s)"),
        (TEXT, {"prompt": [""], "top_p": 1.5}, 400, "top_p must be in (0, 1], got 1.5."),
        (CHAT, {"messages": [USER], "truncate_prompt_tokens": 0, "top_k": -2}, 400, "top_k must be 0 (disable), or at"),
        (TEXT, {"prompt": [[2**40]], "echo": True}, 400, "number too large to fit in target type"),
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


def test_a_batch_takes_no_arguments_of_media(server: TestServer) -> None:
    reply = call(server, "POST", BATCH, {"messages": [[USER]], "max_tokens": 2, "media_io_kwargs": {"a": {"b": 1}}})
    assert (reply.status, reply.json["error"]["param"]) == (400, "media_io_kwargs")


def test_the_calls_of_a_batch_are_refused_before_its_other_members(server: TestServer) -> None:
    body = {"messages": [[USER, UNREADABLE_CALL]], "reasoning_effort": "x"}
    message = call(server, "POST", BATCH, body).json["error"]["message"]
    assert message.startswith("3 validation errors for ChatCompletionRequest\n0.ChatCompletionMessageFunctionToolCall")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [USER | {"tool_calls": [{}]}]}),
        (CHAT, {"messages": [USER | {"tool_calls": {"a": 1}}]}),
        (CHAT, {"messages": [USER, {"role": "critic", "content": "x", "tool_calls": {}}]}),
        (CHAT, {"messages": [USER, {"role": "assistant", "content": ["a"], "tool_calls": None}, USER]}),
        (CHAT, {"messages": [USER], "use_beam_search": True, "n": 2, "logit_bias": {"a": 1}}),
        (CHAT, {"messages": [USER], "use_beam_search": True, "routed_experts_prompt_start": 99}),
        (TEXT, {"prompt": "a", "use_beam_search": True, "vllm_xargs": {"a": "\ud800"}}),
        (TEXT, {"prompt": "a", "prompt_embeds": []}),
        (
            RESPONSES,
            {"input": [USER, {"type": "message", "role": "assistant", "id": "m", "status": 0, "content": "x"}, USER]},
        ),
    ],
)
def test_what_vllm_does_not_look_at_is_answered(path: str, body: dict[str, Any], server: TestServer) -> None:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    reply = call(server, "POST", path, {**body, limit: 2})
    assert reply.status == 200, reply.body
