"""Batches with fields that only chats have, forms of text, forced calls, malformed messages, and states of streams."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.wire.asked.setups import Asked

BATCH, CHAT, RESPONSES, TEXT = "/v1/chat/completions/batch", "/v1/chat/completions", "/v1/responses", "/v1/completions"
RENDERED_CHAT, RENDERED_RESPONSE = "/v1/chat/completions/render", "/v1/responses/render"
DERENDERED_CHAT, DERENDERED_TEXT = "/v1/chat/completions/derender", "/v1/completions/derender"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SHARED = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}
OTHER = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
MOST_PROMPTS = 1024


def detail_cases() -> Sequence[Asked]:
    """All requests to a server with a parser that reads forced calls."""
    return [
        *_batches(),
        *_texts(),
        *_messages(),
        *_states(),
        *_odd_chunks(),
        *_two_mistakes(),
        *_held(),
        *_usages(),
        *_long_prompts(),
    ]


def _batches() -> list[Asked]:
    body = {"model": "m", "messages": [USER, USER], "max_tokens": 2, "ignore_eos": True}
    every: tuple[dict[str, Any], ...] = (
        {"truncate_prompt_tokens": 3},
        {"stop_token_ids": "x"},
        {"documents": 7},
        {"reasoning_effort": "x"},
        {"skip_special_tokens": "x"},
        {"tools": 1.5},
        {"tools": [{"type": "function"}]},
        {"tools": TOOLS},
        {"tools": TOOLS, "parallel_tool_calls": "x"},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tool_choice": "auto"},
        {"tool_choice": "x"},
        {"prompt_logprobs": 1, "return_prompt_text": True},
        {"min_tokens": None, "documents": None},
        {"top_logprobs": "x"},
        {"top_logprobs": [1], "prompt_logprobs": "x"},
        {"top_logprobs": [1], "seed": "x"},
    )
    return [Asked(f"batch {fields}", BATCH, {**body, **fields}) for fields in every]


def _texts() -> list[Asked]:
    body = {"model": "m", "input": "hi", "max_output_tokens": 3, "ignore_eos": True}
    form = {"zz": 1, "type": "json_schema", "name": "a", "schema": SCHEMA}
    every: tuple[Any, ...] = (
        {"extra": 1},
        {"format": {"type": "text", "x": 1}},
        {"y": 2, "format": {"x": [1], "type": "json_object"}, "verbosity": "low"},
        {"format": form},
    )
    refused: tuple[dict[str, Any], ...] = (
        {"stop_token_ids": [1000000]},
        {"logit_bias": {"999999": 1}},
        {"structured_outputs": {"choice": []}},
        {"top_logprobs": 30, "include": ["message.output_text.logprobs"]},
        {"stop": ""},
        {"stop": [""]},
    )
    texts = [Asked(f"text {text}", RESPONSES, {**body, "text": text}, said='{"a": 1}') for text in every]
    return [
        *texts,
        *(Asked(f"tools {tools}", RESPONSES, {**body, "tools": tools}) for tools in (1.5, True, 0)),
        *(Asked(f"response {each}", RESPONSES, {**body, **each}) for each in refused),
        *(Asked(f"streamed response {each}", RESPONSES, {**body, **each, "stream": True}) for each in refused),
    ]


def _messages() -> list[Asked]:
    calls = [{"id": "a"}]
    every: tuple[Any, ...] = (
        {},
        {"a": 1},
        {"role": [-1], "content": "x", "tool_calls": calls},
        {"role": [], "tool_calls": calls},
        {"role": "x", "content": "x", "tool_calls": calls},
        {"role": "x", "content": "x", "tool_calls": [7]},
    )
    return [Asked(f"message {each}", CHAT, {"model": "m", "messages": [each]}) for each in every]


def _states() -> list[Asked]:
    every: tuple[tuple[str, dict[str, Any]], ...] = (
        ("longest window", {"prev_tokens": ["a"] * 1024}),
        ("window that is too long", {"prev_tokens": ["a"] * 1025}),
        ("tokens without lengths", {"output_token_ids": [5, 6]}),
        ("lengths without tokens", {"output_chunk_lens": [1]}),
        ("lengths that are too few", {"output_token_ids": [5, 6], "output_chunk_lens": [1]}),
        ("lengths that are too many", {"output_token_ids": [5, 6], "output_chunk_lens": [3]}),
        ("length of zero", {"output_token_ids": [5], "output_chunk_lens": [1, 0]}),
        ("right lengths", {"output_token_ids": [5, 6], "output_chunk_lens": [1, 1]}),
        ("ids that no tokenizer has", {"output_token_ids": [-1, 7, 2**63], "output_chunk_lens": [3]}),
    )
    return [
        *(Asked(f"chat state: {name}", DERENDERED_CHAT, _chat_chunk(state)) for name, state in every),
        *(Asked(f"text state: {name}", DERENDERED_TEXT, _text_chunk(state)) for name, state in every),
    ]


def _usages() -> list[Asked]:
    usage = {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6}
    return [
        Asked(f"usage of a chunk, {prompt} prompt tokens, {path}", path, {**body, "prompt_tokens": prompt})
        for prompt in (None, 4)
        for path, body in (
            (DERENDERED_CHAT, _chat_chunk(None, usage=usage)),
            (DERENDERED_TEXT, _text_chunk(None, usage=usage)),
        )
    ]


def _odd_chunks() -> list[Asked]:
    found = []
    for ids in ([-1, 5], [5, -1, 6], [2**40, 5], [2**63, 5]):
        choices = [{"index": 0, "token_ids": ids}]
        found.append(Asked(f"chat state: chunk of {ids}", DERENDERED_CHAT, _chat_chunk(None, choices=choices)))
        found.append(Asked(f"text state: chunk of {ids}", DERENDERED_TEXT, _text_chunk(None, choices=choices)))
    return found


def _two_mistakes() -> list[Asked]:
    """Requests with a limit of tokens out of bounds and another mistake, and mistakes that a stream begins with."""
    every: tuple[dict[str, Any], ...] = (
        {"max_tokens": 0, "bad_words": [" "]},
        {"max_tokens": 0, "stop_token_ids": [1000000]},
        {"max_tokens": 0, "structured_outputs": {"regex": "("}},
        {"routed_experts_prompt_start": 99},
        {"logit_bias": {"999999": 1}, "bad_words": [" "]},
    )
    found = []
    for stream in (False, True):
        for each in every:
            name, fields = f"{each}, stream {stream}", {"model": "m", "max_tokens": 2, "stream": stream, **each}
            found.append(Asked(f"text with {name}", TEXT, {"prompt": "hi", **fields}))
            found.append(Asked(f"chat with {name}", CHAT, {"messages": USER, **fields}))
    return found


def _held() -> list[Asked]:
    """Responses whose calls are held to the grammar of the parser, beside another form of the text."""
    text = {"format": {"type": "json_object"}, "verbosity": "low"}
    body = {"model": "m", "input": "hi", "text": text, "max_output_tokens": 2}
    found = []
    for is_strict in (False, True):
        tools = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": is_strict}]
        for choice in ("auto", "none", "required", {"type": "function", "name": "f"}):
            held = {**body, "tools": tools, "tool_choice": choice}
            name = f"{choice}, strict {is_strict}"
            found.append(Asked(f"held response {name}", RESPONSES, held, said="<tool_call>"))
    return found


def _chunk(state: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    generated = {"request_id": "r", "choices": [{"index": 0, "token_ids": [5, 6]}], **fields}
    return {"stream": True, "generate_chunk": generated, "stream_state": state}


def _chat_chunk(state: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    asked = {"model": "m", "messages": USER}
    return {**_chunk(state, **fields), "prompt_token_ids": [5], "chat_request": asked}


def _text_chunk(state: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    return _chunk(state, **fields)


def _long_prompts() -> list[Asked]:
    ids: list[Any] = [5] * MOST_PROMPTS
    return [
        Asked("prompt of 1,024 ids, one a float", TEXT, {"model": "m", "prompt": [*ids[1:], 1.5], "max_tokens": 2}),
        Asked("prompt of 1,025 ids, one a float", TEXT, {"model": "m", "prompt": [*ids, 1.5], "max_tokens": 2}),
    ]


def forced_cases() -> Sequence[Asked]:
    """All requests to a server whose parser does not read forced calls: vLLM holds them to a JSON schema."""
    every: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("one function", (SCHEMA,)),
        ("no parameters", (None,)),
        ("two functions", (SCHEMA, {"type": "object"})),
        ("definitions that differ", (SHARED, OTHER)),
        ("definitions that are none", ({**SCHEMA, "$defs": 7},)),
        ("definitions", (SHARED,)),
    )
    refused: tuple[Any, ...] = (
        {"type": "nope"},
        {"$ref": "#/$defs/nope"},
        {"type": "string", "pattern": "("},
        {"properties": {"a": False}},
    )
    found = [asked for name, schemas in every for named in (False, True) for asked in _forced(name, schemas, named)]
    for schema in refused:
        found += [asked for named in (False, True) for asked in _forced(f"bad schema {schema}", (schema,), named)[:2]]
    streamed = _forced("stream of a bad schema", refused[:1], is_named=False)[:2]
    return [*found, *(replace(each, body={**(each.body or {}), "stream": True}) for each in streamed)]


def _forced(name: str, schemas: Sequence[Any], is_named: bool) -> list[Asked]:
    name = f"{name}, {'named' if is_named else 'required'}"
    said = '{"a": 1}' if is_named else '[{"name": "f0", "parameters": {"a": 1}}]'
    functions = [{"name": f"f{number}", "parameters": schema} for number, schema in enumerate(schemas)]
    chat = {
        "model": "m",
        "messages": USER,
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": each} for each in functions],
        "tool_choice": {"type": "function", "function": {"name": "f0"}} if is_named else "required",
    }
    response = {
        "model": "m",
        "input": "hi",
        "parallel_tool_calls": False,
        "tools": [{"type": "function", **each} for each in functions],
        "tool_choice": {"type": "function", "name": "f0"} if is_named else "required",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    }
    return [
        Asked(f"chat: {name}", CHAT, chat, said=said),
        Asked(f"response: {name}", RESPONSES, response, said=said),
        Asked(f"rendered chat: {name}", RENDERED_CHAT, chat),
        Asked(f"rendered response: {name}", RENDERED_RESPONSE, response),
    ]
