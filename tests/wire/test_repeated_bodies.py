"""Bodies that differ in their messages or prompts alone are answered and refused as if each were the first."""

import re
from itertools import count
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer

FIELDS: list[dict[str, Any]] = [
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"n": 2, "seed": 5},
    {"stop": ["e"], "stream": True},
    {"min_tokens": 6},
    {"return_token_ids": True, "stream": True},
    {"truncate_prompt_tokens": 5},
    {"prompt_logprobs": 1},
    {"logit_bias": {"5": 1}},
    {"cache_salt": "salt", "priority": 3, "vllm_xargs": {"slo_e2e_ms": 5}},
    {"bad_words": ["the"], "min_tokens": 8},
    {"add_special_tokens": True},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"use_beam_search": True, "n": 2},
    {"response_format": {"type": "json_object"}},
]
OF_CHATS: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 2, "stream": True},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    {"add_generation_prompt": False},
    {"echo": True},
]
OF_COMPLETIONS: list[dict[str, Any]] = [{"logprobs": 2, "stream": True}, {"echo": True, "stream": True}]
TEXTS = ("Say hello.", "Count to ten, slowly. " * 5, "", "long " * 9000, "\ud83d half")
_CHANGING = re.compile(rb'"id":"[^"]*"|"created":\d+|(chatcmpl|cmpl)-\w+')
_numbers = count()


def body_of(path: str, text: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A request with a text."""
    body = {"temperature": 0, "max_tokens": 8, **fields}
    if path.endswith("chat/completions"):
        return {**body, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]}
    return {**body, "prompt": text}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *(("/v1/chat/completions", fields) for fields in (*FIELDS, *OF_CHATS)),
        *(("/v1/completions", fields) for fields in (*FIELDS, *OF_COMPLETIONS)),
    ],
)
def test_a_repeated_body_is_answered_like_the_first(server: TestServer, path: str, fields: dict[str, Any]) -> None:
    call(server, "POST", path, body_of(path, "Something else.", fields))
    for text in TEXTS:
        repeated = call(server, "POST", path, body_of(path, text, fields))
        # A name of the user changes nothing, but no body before had it.
        first = call(server, "POST", path, {**body_of(path, text, fields), "user": f"user {next(_numbers)}"})
        assert repeated.status == first.status
        assert _CHANGING.sub(b"", repeated.body) == _CHANGING.sub(b"", first.body)
