"""The requests of the search to servers without parsers: odd messages, fields, chat templates and other interfaces."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from workshop.vllm_oracle.wire_search.questions import CHAT, MESSAGES, RESPONSES, USER, SearchRequest

TEXT, TOKENIZE, COUNT, GENERATE = "/v1/completions", "/tokenize", "/v1/messages/count_tokens", "/inference/v1/generate"
RENDER, BATCH = "/v1/chat/completions/render", "/v1/chat/completions/batch"
RequestSpec: TypeAlias = tuple[str, str, dict[str, Any]]

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {"b": null}]}'}}
PARTS: list[Any] = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {"type": "x"}}]
CONVERSATIONS: dict[str, list[Any]] = {
    "emoji and zero bytes": [{"role": "user", "content": "h\u0000i \U0001f600 \u202e"}],
    "only white space": [{"role": "user", "content": " \n\t "}],
    "empty text": [{"role": "user", "content": ""}],
    "two systems": [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *USER],
    "late system": [*USER, {"role": "system", "content": "b"}, *USER],
    "assistant first": [{"role": "assistant", "content": "a"}, *USER],
    "assistant last": [*USER, {"role": "assistant", "content": "a"}],
    "two users": [*USER, *USER],
    "name with spaces": [{"role": "user", "name": "a b c", "content": "x"}],
    "parts": [{"role": "user", "content": PARTS}],
    "system in parts": [{"role": "system", "content": PARTS}, *USER],
    "assistant in parts": [*USER, {"role": "assistant", "content": PARTS}, *USER],
    "call and words": [*USER, {"role": "assistant", "content": "so", "tool_calls": [CALL]}, *USER],
    "two calls": [*USER, {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "b"}]}, *USER],
    "result without a call": [*USER, {"role": "tool", "content": "r", "tool_call_id": "zz"}],
    "result without an id": [*USER, {"role": "tool", "content": "r"}],
    "result without content": [*USER, {"role": "tool", "tool_call_id": "a"}],
    "null role": [{"role": None, "content": "x"}],
    "no role": [{"content": "x"}],
    "number as role": [{"role": 7, "content": "x"}],
    "number as content": [{"role": "user", "content": 7}],
    "object as content": [{"role": "user", "content": {"a": 1}}],
    "list in a list": [{"role": "user", "content": [["x"]]}],
    "a string for a message": ["x"],
    "null for a message": [None],
    "number as call": [*USER, {"role": "assistant", "tool_calls": [7]}],
    "calls as an object": [*USER, {"role": "assistant", "tool_calls": {"a": 1}}],
    "calls as text": [*USER, {"role": "assistant", "tool_calls": "ab"}],
    "text of a number": [{"role": "user", "content": [{"type": "text", "text": 7}]}],
    "unknown part": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}],
    "picture": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}],
    "picture without url": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    "refusal null": [*USER, {"role": "assistant", "content": "a", "refusal": None}, *USER],
}
SINGLE: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 2.5},
    {"temperature": "0.5"},
    {"temperature": None},
    {"temperature": True},
    {"top_p": 0},
    {"top_p": 1.0001},
    {"top_k": -2},
    {"top_k": 0},
    {"top_k": 1.0},
    {"top_k": 1.5},
    {"min_p": -0.1},
    {"min_tokens": 1},
    {"min_tokens": 9},
    {"min_tokens": -1},
    {"n": 2},
    {"n": 0},
    {"n": "2"},
    {"n": 2, "temperature": 0},
    {"seed": -1},
    {"seed": 2**63},
    {"seed": "x"},
    {"stop": "zz"},
    {"stop": ["zz", "yy"]},
    {"stop": ["a", "b", "c", "d", "e"]},
    {"stop": 7},
    {"stop": [7]},
    {"stop_token_ids": "5"},
    {"stop_token_ids": [5.0]},
    {"presence_penalty": 2.01},
    {"frequency_penalty": -2.01},
    {"repetition_penalty": 0},
    {"repetition_penalty": 1e400},
    {"logit_bias": {"a": 1}},
    {"logit_bias": {"5": "x"}},
    {"logit_bias": {"5": 101}},
    {"logit_bias": [1]},
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"max_tokens": 3000},
    {"max_tokens": "2"},
    {"max_tokens": 2.0},
    {"priority": 3},
    {"priority": 2**63},
    {"user": 7},
    {"metadata": 7},
    {"store": "x"},
    {"service_tier": "x"},
    {"truncate_prompt_tokens": 1},
    {"truncate_prompt_tokens": -1},
    {"truncate_prompt_tokens": -2},
    {"truncate_prompt_tokens": 3000},
    {"truncate_prompt_tokens": 1, "truncation_side": "left"},
    {"truncation_side": "up"},
    {"add_special_tokens": True},
    {"skip_special_tokens": False},
    {"spaces_between_special_tokens": False},
    {"include_stop_str_in_output": True},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [-1]},
    {"bad_words": [""]},
    {"bad_words": [" "]},
    {"bad_words": "x"},
    {"return_token_ids": True},
    {"return_weight_versions": True},
    {"return_tokens_as_token_ids": True},
    {"stream_interval": 0},
    {"stream_interval": 2},
    {"cache_salt": ""},
    {"cache_salt": "a/b"},
    {"cache_salt": "x" * 129},
    {"kv_transfer_params": {}},
    {"kv_transfer_params": 7},
    {"vllm_xargs": 7},
    {"vllm_xargs": {"a": {}}},
    {"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 2}},
    {"repetition_detection": 7},
    {"best_of": 3},
    {"guided_json": {}},
    {"model": "other"},
    {"model": None},
    {"model": 7},
    {"request_id": 7},
    {"unknown": 7},
)
CHAT_ONLY: tuple[dict[str, Any], ...] = (
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": -1},
    {"logprobs": True, "top_logprobs": 21},
    {"logprobs": False, "top_logprobs": 2},
    {"logprobs": 2},
    {"top_logprobs": 0},
    {"prompt_logprobs": 1},
    {"prompt_logprobs": -2},
    {"echo": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": None},
    {"continue_final_message": True},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"reasoning_effort": "huge"},
    {"reasoning_effort": "low"},
    {"include_reasoning": False},
    {"documents": [{"title": "a"}]},
    {"documents": "x"},
    {"chat_template_kwargs": "x"},
    {"chat_template_kwargs": {"a": None}},
    {"chat_template": "{{ messages | length }}"},
    {"chat_template": "{{ messages[5].role }}"},
    {"chat_template": "{{ messages[0].content.x.y }}"},
    {"chat_template": "{% for m in messages %}{% endfor %}"},
    {"chat_template": "{% include 'x' %}"},
    {"chat_template": "{{ strftime_now('%') }}x"},
    {"chat_template": "{{ tools }}{{ documents }}{{ eos_token }}{{ pad_token }}{{ unk_token }}"},
    {"chat_template": 7},
    {"tools": []},
    {"tools": None},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "web", "function": {"name": "a"}}]},
    {"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "none"},
    {"tools": [{"type": "function", "function": {"name": "a"}}]},
    {"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required"},
    {"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": {"function": {"name": "b"}}},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tool_choice": "x"},
    {"parallel_tool_calls": "x"},
    {"max_completion_tokens": 1},
    {"max_completion_tokens": 0},
    {"max_completion_tokens": None},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {}},
    {"stream_options": 7},
    {"mm_processor_kwargs": {"a": 1}},
    {"messages": "x"},
    {"messages": None},
    {"messages": {}},
)
PROMPTS: tuple[Any, ...] = (
    "",
    " ",
    "a" * 3000,
    ["a", "b"],
    [],
    [""],
    [[]],
    [[5], [6]],
    [5, "a"],
    [5.5],
    7,
    None,
    {"a": 1},
)


def field_questions() -> Iterator[SearchRequest]:
    """All of them, whole and as streams."""
    for name, path, body in _asked():
        yield SearchRequest(f"{name}, whole", path, body, {})
        if path not in (TOKENIZE, COUNT, RENDER, BATCH) and not name.startswith("random"):
            yield SearchRequest(f"{name}, stream", path, {**body, "stream": True}, {})


def _asked() -> Iterator[RequestSpec]:
    usual = {"model": "m", "messages": USER, "max_tokens": 3, "ignore_eos": True}
    for name, messages in CONVERSATIONS.items():
        yield f"chat of {name}", CHAT, {**usual, "messages": messages, "return_prompt_text": True}
        yield f"tokens of {name}", TOKENIZE, {"model": "m", "messages": messages}
    for fields in (*SINGLE, *CHAT_ONLY):
        yield f"chat with {str(fields)[:70]}", CHAT, {**usual, **fields}
    for fields in SINGLE:
        yield f"text with {str(fields)[:70]}", TEXT, {"model": "m", "prompt": "hi", **_TEXT, **fields}
    for prompt in PROMPTS:
        yield f"prompt {str(prompt)[:30]!r}", TEXT, {"model": "m", "prompt": prompt, **_TEXT}
        yield f"echo of {str(prompt)[:30]!r}", TEXT, {"model": "m", "prompt": prompt, "echo": True, **_TEXT}
    for logprobs in (0, 2, -1, 21, "x"):
        yield f"text with logprobs {logprobs}", TEXT, {"model": "m", "prompt": "hi", "logprobs": logprobs, **_TEXT}
    yield from _responses()
    yield from _messages()
    yield "two conversations", BATCH, {**usual, "messages": [USER, USER]}
    yield "no conversation", BATCH, {**usual, "messages": []}
    yield "rendered", RENDER, usual
    yield "rendered with tools", RENDER, {**usual, "tools": [{"function": {"name": "a"}}], "tool_choice": "none"}


_TEXT = {"max_tokens": 3, "ignore_eos": True}


def _responses() -> Iterator[RequestSpec]:
    usual = {"model": "m", "input": "hi", "max_output_tokens": 3, "ignore_eos": True}
    for value in (
        [{"role": "user", "content": "a"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
        [{"type": "function_call_output", "call_id": "a", "output": "r"}],
        [
            {"role": "user", "content": "a"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "r"},
        ],
        [{"type": "reasoning", "id": "r", "summary": []}, {"role": "user", "content": "a"}],
        [],
        "",
        7,
        None,
    ):
        yield f"response to {str(value)[:60]}", RESPONSES, {**usual, "input": value}
    for fields in (
        {"instructions": "be short"},
        {"instructions": 7},
        {"temperature": 3},
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
        {"text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "x"}}},
        {"truncation": "auto"},
        {"truncation": "x"},
        {"max_output_tokens": 0},
        {"max_output_tokens": 5000},
        {"store": False},
        {"background": True},
        {"previous_response_id": "resp_x"},
        {"reasoning": {"effort": "low"}},
        {"reasoning": {"effort": "x"}},
        {"metadata": {"a": "b"}},
        {"user": "u", "service_tier": "flex"},
        {"tools": [{"type": "function", "name": "f", "parameters": None}], "tool_choice": "none"},
        {"tools": [{"type": "x"}]},
        {"stop": "zz"},
        {"stop": ["zz", 7]},
        {"stop_token_ids": [10**6]},
        {"prompt_cache_key": "k"},
        {"enable_response_messages": True},
    ):
        yield f"response with {str(fields)[:70]}", RESPONSES, {**usual, **fields}


def _messages() -> Iterator[RequestSpec]:
    usual = {"model": "m", "messages": USER, "max_tokens": 3}
    block = {"type": "text", "text": "a"}
    every: tuple[dict[str, Any], ...] = (
        {},
        {"system": "s"},
        {"system": [block, block]},
        {"system": 7},
        {"messages": [{"role": "user", "content": [block, block]}]},
        {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
        {"messages": [{"role": "x", "content": "a"}]},
        {"messages": []},
        {"messages": [*USER, {"role": "assistant", "content": "a"}]},
        {"messages": [*USER, {"role": "system", "content": "late"}, *USER]},
        {"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, block]}, *USER]},
        {
            "messages": [
                *USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [block]}]},
            ]
        },
        {"max_tokens": 0},
        {"max_tokens": None},
        {"temperature": 3},
        {"top_k": 2, "top_p": 0.5},
        {"stop_sequences": ["zz"]},
        {"stop_sequences": ["a", "b", "c", "d", "e"]},
        {"metadata": {"user_id": "u"}},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"thinking": {"type": "disabled"}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "any"}},
        {"model": "other"},
        {"chat_template_kwargs": {"a": 1}},
    )
    for fields in every:
        # The stand-in of the model needs to be stopped by the limit, since messages cannot ignore its end.
        yield f"message with {str(fields)[:70]}", MESSAGES, {**usual, **fields}
        counted = {name: value for name, value in usual.items() if name != "max_tokens"}
        yield f"count with {str(fields)[:70]}", COUNT, {**counted, **fields}
