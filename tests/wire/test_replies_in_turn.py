"""Large replies are planned in turn and written while they are sent. A large reply equals a reply made at once."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.plain_http import call, chunks_of
from tests.wire.serving import TestServer, running_server

LONG = {"max_tokens": 700, "ignore_eos": True, "seed": 5}
FLAGS: dict[str, Any] = {
    "reasoning_parser": "deepseek_r1",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "enable_prompt_tokens_details": True,
    "enable_scale_out": True,
    "total_kv_blocks": 20_000,
}
IDS = list(range(1000, 1600))
MESSAGES = [{"role": "user", "content": "hello there"}]

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("/v1/completions", {"prompt": "hi", "n": 20, "max_tokens": 5, "seed": 1}),
    "prompts": ("/v1/completions", {"prompt": ["hi", "you", "they"], "n": 3, "max_tokens": 5, "seed": 1}),
    "logprobs": ("/v1/completions", {"prompt": "hi", "n": 2, "logprobs": 3, **LONG}),
    "echo": ("/v1/completions", {"prompt": IDS, "n": 2, "echo": True, "logprobs": 2, "max_tokens": 3, "seed": 1}),
    "only echo": ("/v1/completions", {"prompt": IDS, "echo": True, "logprobs": 2, "max_tokens": 0, "seed": 1}),
    "prompt logprobs": ("/v1/completions", {"prompt": IDS, "prompt_logprobs": 2, "max_tokens": 3, "seed": 1, "n": 2}),
    "token ids": ("/v1/completions", {"prompt": "hi", "return_token_ids": True, **LONG}),
    "beams": ("/v1/completions", {"prompt": "hi", "n": 3, "use_beam_search": True, "max_tokens": 9, "seed": 1}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "n": 5, "max_completion_tokens": 90, "seed": 1}),
    "chat logprobs": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, **LONG},
    ),
    "chat stream": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stream_interval": 600, **LONG},
    ),
    "batch": (
        "/v1/chat/completions/batch",
        {"messages": [MESSAGES, MESSAGES], "max_completion_tokens": 20, "seed": 1},
    ),
    "generate": (
        "/inference/v1/generate",
        {"token_ids": IDS, "sampling_params": {"n": 2, "logprobs": 2, "prompt_logprobs": 1, **LONG}},
    ),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 600, "ignore_eos": True, "seed": 1}),
    "response logprobs": (
        "/v1/responses",
        {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 600,
         "ignore_eos": True, "seed": 1},
    ),
    "message": ("/v1/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 600, "temperature": 0}),
}  # fmt: skip
STREAMED = ("choices", "logprobs", "echo", "token ids", "chat", "chat stream")
VOLATILE = ("id", "created", "created_at", "request_id", "item_id", "signature")


@pytest.fixture(scope="module")
def at_once() -> tuple[dict[str, Any], dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mockserve.protocol.bodies.LONG_TOKENS", 10**9)
        patch.setattr("mockserve.reply.choice_writer.LONG_TOKENS", 10**9)
        patch.setattr("mockserve.serving.planner.LONG_US", 1e18)
        with running_server(**FLAGS) as server:
            replies = {name: call(server, "POST", path, body).json for name, (path, body) in REQUESTS.items()}
            streams = {name: streamed(server, name) for name in STREAMED}
    return replies, streams


@pytest.fixture(scope="module")
def in_turn() -> Iterator[TestServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mockserve.reply.reply.MOST_PLANNED_TOKENS", 10)
        patch.setattr("mockserve.reply.reply.MOST_PLANNED_TOKENS", 10)
        patch.setattr("mockserve.serving.planner.LONG_US", 0)
        patch.setattr("mockserve.reply.stream.WHOLE_BYTES", 500)
        patch.setattr("mockserve.reply.stream.PART_BYTES", 100)
        with running_server(**FLAGS) as server:
            yield server


def streamed(server: TestServer, name: str) -> dict[int, list[Any]]:
    """The chunks of each choice in their order: those of different choices come as the engine brings them."""
    path, body = REQUESTS[name]
    reply = call(server, "POST", path, {**body, "stream": True})
    found: dict[int, list[Any]] = {}
    for chunk in chunks_of(reply.body):
        for choice in chunk["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return found


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items() if name not in VOLATILE}
    return [comparable(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", REQUESTS)
def test_a_whole_reply_in_turn_equals_one_at_once(at_once: Any, in_turn: TestServer, name: str) -> None:
    path, body = REQUESTS[name]
    reply = call(in_turn, "POST", path, body)
    assert reply.status == 200, reply.body
    assert comparable(reply.json) == comparable(at_once[0][name])


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_in_turn_equals_one_at_once(at_once: Any, in_turn: TestServer, name: str) -> None:
    assert json.dumps(merged(streamed(in_turn, name))) == json.dumps(merged(at_once[1][name]))


def merged(choices: dict[int, list[Any]]) -> dict[int, Any]:
    """All that a choice got, however it was spread over events."""
    found: dict[int, Any] = {}
    for index, chunks in sorted(choices.items()):
        text = "".join(each.get("text") or (each.get("delta") or {}).get("content") or "" for each in chunks)
        logprobs = [each["logprobs"] for each in chunks if each.get("logprobs")]
        ids = [number for each in chunks for number in each.get("token_ids") or ()]
        found[index] = (text, logprobs, ids, chunks[-1]["finish_reason"])
    return found
