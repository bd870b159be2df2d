"""Requests whose prompts depend on how chat templates are called."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.wire.asked.setups import Asked

CHAT, TOKENIZE, COUNT = "/v1/chat/completions", "/tokenize", "/v1/messages/count_tokens"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SHOWS_ALL = "{% for m in messages %}{{ m }}\n{% endfor %}"
SHOWS_PARTS = "{% for m in messages %}{% for c in m.content %}{{ c }}|{% endfor %}{{ m }}\n{% endfor %}"
SHOWS_TOOLS = "{% for t in tools or [] %}{{ t }}{% endfor %}{{ tools | tojson }}"
SHOWS_ARGUMENTS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}{{ documents }}{{ foo }}{{ enable_thinking }}"
    "{{ reasoning_effort }}{{ continue_final_message }}{{ add_generation_prompt }}{{ bos_token }}"
)
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}

TOOLS: dict[str, list[dict[str, Any]]] = {
    "other order, unknown keys": [{"type": "function", "function": {"parameters": PARAMETERS, "name": "look", "x": 1}}],
    "all fields": [
        {"type": "function", "function": {"name": "a", "strict": True, "description": "d", "parameters": PARAMETERS}},
        {"function": {"name": "b"}, "extra": 3},
    ],
    "deferred": [{"type": "function", "defer_loading": True, "function": {"name": "look", "strict": None}}],
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "name": [{"role": "user", "content": "hi", "name": "bob", "x": 1, "task": "t"}],
    "no content": [{"role": "user"}],
    "role of its own": [{"role": "critic", "content": "hi", "x": 1}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": "b"}]}],
    "calls": [
        *USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
    ],
    "no calls": [*USER, {"role": "assistant", "content": "x", "tool_calls": []}, *USER],
    "broken arguments": [
        *USER,
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}, "index": 0}]},
    ],
    "reasoning": [*USER, {"role": "assistant", "content": "x", "reasoning": "why"}, *USER],
    "empty reasoning": [*USER, {"role": "assistant", "content": "x", "reasoning": ""}, *USER],
    "reasoning by its older name": [*USER, {"role": "assistant", "content": "x", "reasoning_content": "why"}, *USER],
    "reasoning of a user": [{"role": "user", "content": "x", "reasoning": "why"}],
    "refusal": [*USER, {"role": "assistant", "content": None, "refusal": "no"}, *USER],
    "refusal as a part": [*USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *USER],
    "result in parts": [
        *USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": t} for t in "ab"]},
    ],
    "tool reference": [
        *USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "tool_reference", "name": "f"}]},
    ],
    "billing header": [{"role": "system", "content": "x-anthropic-billing-header: a\nrest"}, *USER],
    "developer": [{"role": "developer", "content": "d"}, *USER],
    "developer and system": [{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}, *USER],
    "function call": [
        *USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
    ],
}
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"tokenize": True},
    {"tokenize": False},
    {"chat_template": "x"},
    {"add_generation_prompt": False},
    {"continue_final_message": True},
    {"tools": [{"a": 1}]},
    {"tools": None},
    {"tools": 3},
    {"documents": ["x"]},
    {"foo": "auto"},
    {"foo": 3},
    {"messages": []},
    {"conversation": []},
    {"return_assistant_tokens_mask": True},
    {"sanitize_control_tokens": True},
    {"max_length": 1},
    {"bos_token": "B"},
    {"enable_thinking": False},
    {"reasoning_effort": "low"},
)
ENDS = (
    "{% for m in messages %}[{{ m.content }}]{% endfor %}",
    "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
    "{% for m in messages %}[{{ m.role }}]{% endfor %}",
)


def chat(**fields: Any) -> dict[str, Any]:
    """A chat that shows its prompt."""
    usual = {"model": "m", "messages": USER, "max_tokens": 1, "ignore_eos": True}
    return {**usual, "return_prompt_text": True, "return_token_ids": True, **fields}


def cases() -> Sequence[Asked]:
    """All of them."""
    return [*_tools(), *_conversations(), *_arguments(), *_ends(), *_odd_templates()]


def _tools() -> Iterator[Asked]:
    for name, tools in TOOLS.items():
        yield Asked(f"tools: {name}", CHAT, chat(tools=tools, tool_choice="none", chat_template=SHOWS_TOOLS))
        body = {"model": "m", "messages": USER, "tools": tools, "chat_template": SHOWS_TOOLS}
        yield Asked(f"tools tokenized: {name}", TOKENIZE, body)
    tool: dict[str, Any] = {"name": "a", "input_schema": PARAMETERS}
    counted = {"model": "m", "messages": USER}
    yield Asked("tools counted", COUNT, {**counted, "tools": [tool]})
    whole: dict[str, Any] = {**tool, "description": "x", "strict": True, "defer_loading": True}
    yield Asked("all fields of tools counted", COUNT, {**counted, "tools": [whole]})
    function: dict[str, Any] = {"type": "function", "name": "a", "parameters": PARAMETERS}
    response: dict[str, Any] = {"model": "m", "input": "hi", "max_output_tokens": 2, "tool_choice": "none"}
    yield Asked("tools of a response", "/v1/responses", {**response, "tools": [function]})


def _conversations() -> Iterator[Asked]:
    for name, messages in CONVERSATIONS.items():
        for kind, template in (("string", SHOWS_ALL), ("parts", SHOWS_PARTS)):
            yield Asked(f"turns, {kind}: {name}", CHAT, chat(messages=messages, chat_template=template))
    messages = CONVERSATIONS["reasoning by its older name"]
    body = {"model": "m", "messages": messages, "chat_template": SHOWS_ALL}
    yield Asked("reasoning by its older name, tokenized", TOKENIZE, body)


def _arguments() -> Iterator[Asked]:
    for given in ARGUMENTS:
        body = chat(chat_template=SHOWS_ARGUMENTS, chat_template_kwargs=given)
        yield Asked(f"template argument {given}", CHAT, body)
        yield Asked(f"template argument {given} and an effort", CHAT, {**body, "reasoning_effort": "high"})


def _ends() -> Iterator[Asked]:
    for template in ENDS:
        for said in ("well, ", " ", "", None, [{"type": "text", "text": "a "}, {"type": "text", "text": "b "}]):
            messages = [*USER, {"role": "assistant", "content": said}]
            fields = {"continue_final_message": True, "add_generation_prompt": False, "chat_template": template}
            yield Asked(f"going on from {said!r} in {template}", CHAT, chat(messages=messages, **fields))


def _odd_templates() -> Iterator[Asked]:
    for template in ("", None, "{% if", "{{ x.y.z }}", "{{ raise_exception('no') }}", "{{ 1/0 }}", "{{ '' }}"):
        yield Asked(f"template {template!r}", CHAT, chat(chat_template=template))


def bare_cases() -> Sequence[Asked]:
    """Conversations for a tokenizer without a chat template."""
    usual = {"model": "m", "messages": USER, "max_tokens": 2}
    return [
        Asked("chat", CHAT, usual),
        Asked("chat stream", CHAT, {**usual, "stream": True}),
        Asked("batch", f"{CHAT}/batch", {**usual, "messages": [USER]}),
        Asked("render", f"{CHAT}/render", usual),
        Asked("messages", "/v1/messages", usual),
        Asked("messages stream", "/v1/messages", {**usual, "stream": True}),
        Asked("count", COUNT, {"model": "m", "messages": USER}),
        Asked("response", "/v1/responses", {"model": "m", "input": "hi"}),
        Asked("response stream", "/v1/responses", {"model": "m", "input": "hi", "stream": True}),
        Asked("tokenize", TOKENIZE, {"model": "m", "messages": USER}),
        Asked("no messages", CHAT, {**usual, "messages": []}),
        Asked("text", "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 2, "ignore_eos": True}),
    ]


def named_cases() -> Sequence[Asked]:
    """Conversations for a tokenizer with a template of its own for tools."""
    tools = TOOLS["all fields"]
    return [
        Asked("without tools", CHAT, chat()),
        Asked("with tools", CHAT, chat(tools=tools, tool_choice="none")),
        Asked("tools among the arguments", CHAT, chat(chat_template_kwargs={"tools": [{"a": 1}]})),
        Asked("tokenized", TOKENIZE, {"model": "m", "messages": USER, "tools": tools}),
    ]
