"""The body of POST /v1/messages, and its turns in vLLM's form for chat templates."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mockserve.protocol.anthropic.fields import (
    COUNT_FIELDS,
    COUNT_REQUIRED,
    MESSAGES_FIELDS,
    MESSAGES_REQUIRED,
    TOOL_CHANGES,
    value_problem,
)
from mockserve.protocol.errors import INVALID_BODY, ApiError, bad_fields
from mockserve.protocol.reading.body import check_types
from mockserve.protocol.reading.types import as_flag, as_integer, as_number

BILLING_HEADER = "x-anthropic-billing-header"
"""Beginning of a text that differs between requests and would prevent prefix caching."""


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a checked body, the system prompt first."""
    messages: list[dict[str, Any]] = []
    system = _system_text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        messages += _chat_messages(message)
    return messages


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "system":
        text = _system_text(content)
        return [{"role": role, "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turn = _Turn(role)
    for block in content:
        turn.add(block)
    return turn.messages()


class _Turn:
    """One message with blocks. Tool results become separate messages before it."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._before: list[dict[str, Any]] = []
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._reasoning: list[str] = []

    def add(self, block: Mapping[str, Any]) -> None:
        kind = block["type"]
        if kind == "text" and block.get("text"):
            self._parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and block.get("source"):
            self._parts.append(_picture(block["source"]))
        elif kind == "thinking" and block.get("thinking") is not None:
            self._reasoning.append(block["thinking"])
        elif kind == "tool_use":
            self._calls.append(_call(block))
        elif kind == "tool_result" and self._role == "user":
            self._before += _results(block)
        elif kind == "tool_result":
            self._parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})

    def messages(self) -> list[dict[str, Any]]:
        message: dict[str, Any] = {"role": self._role}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        if len(self._parts) == 1 and self._parts[0]["type"] == "text":
            message["content"] = self._parts[0]["text"]
        elif self._parts:
            message["content"] = self._parts
        is_empty = self._role == "user" and "content" not in message
        return self._before if is_empty else [*self._before, message]


def _system_text(content: Any) -> str:
    texts = [content] if isinstance(content, str) else [each.get("text") for each in content or ()]
    return "".join(each for each in texts if each and not each.startswith(BILLING_HEADER))


def _picture(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url", "")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block.get("id") or "call_0", "type": "function", "function": function}


def _results(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a tool result: its text, then its pictures as a message of the user."""
    content = block.get("content") or ""
    items: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [each.get("text", "") for each in items if each.get("type") == "text"]
    for number, each in enumerate(texts):
        if not isinstance(each, str):  # in the words of the language that vLLM is written in
            raise ApiError(f"sequence item {number}: expected str instance, {type(each).__name__} found")
    found: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": "\n".join(texts)}
    ]
    pictures = [_picture(each.get("source", {})) for each in items if each.get("type") == "image"]
    return [*found, {"role": "user", "content": pictures}] if pictures else found


def final_tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tools of a checked body after all changes. Raises ApiError for a change of an unknown tool."""
    tools: dict[str, Mapping[str, Any]] = {each["name"]: each for each in body.get("tools") or ()}
    removed: set[str] = set()
    for block in _changes(body):
        change = block["tool"]
        if change["type"] == "tool_definition":
            name = change["definition"]["name"]
            tools[name] = _converted(change["definition"])
        else:
            name = change["name"]
            if name not in tools:
                raise ApiError(f"{block['type']} references tool {name!r}, which is not declared in tools")
            if block["type"] == "tool_addition":
                tools[name] = {**tools[name], "defer_loading": None}
        if block["type"] == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _changes(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for message in body["messages"]:
        if not isinstance(message["content"], str):
            yield from (each for each in message["content"] if each["type"] in TOOL_CHANGES)


ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
SHARED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "kv_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
)


class AnthropicError(ApiError):
    """A refusal in Anthropic's envelope and vocabulary."""

    def body(self) -> dict[str, Any]:
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


def in_form_of_route(error: ApiError, path: str) -> ApiError:
    """Return the error in Anthropic's form if the route at `path` has that form.

    vLLM's framework words errors about the types of a body alike for all routes.
    """
    is_of_framework = error.is_bare or error.kind == INVALID_BODY
    return error if is_of_framework or path not in ANTHROPIC_PATHS else anthropic_error(error)


def anthropic_error(error: ApiError) -> AnthropicError:
    """Return the error in the form of Anthropic's API."""
    kind = ERROR_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    reworded = AnthropicError(error.message, status=error.status, kind=kind)
    reworded.is_late = error.is_late
    return reworded


def read_messages_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of POST /v1/messages, with numbers and flags also where they were given as text.

    Raises ApiError for an invalid body.
    """
    check_types(body, MESSAGES_FIELDS, MESSAGES_REQUIRED, ignores_unknown=True)
    _check_model(body)
    found = _typed(body)
    thinking = found.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= found["max_tokens"]:
        raise bad_fields([value_problem("thinking.budget_tokens must be less than max_tokens", "body", body)])
    return found


def read_count_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of POST /v1/messages/count_tokens as `read_messages_body` does.

    Fields about the answer do not affect the count and are not checked.
    """
    check_types(body, COUNT_FIELDS, COUNT_REQUIRED, ignores_unknown=True)
    _check_model(body)
    return _typed({name: value for name, value in body.items() if name in COUNT_FIELDS})


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("max_tokens", "top_k", "budget_tokens"), as_integer),
    **dict.fromkeys(("temperature", "top_p"), as_number),
    **dict.fromkeys(("stream", "disable_parallel_tool_use", "strict", "defer_loading"), as_flag),
}
"""Fields of a body, of its `thinking` and its `tool_choice`, and of tools, by how their values are read."""


def _typed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked body with the types that pydantic gives to its values."""
    found = _converted(body)
    for name in ("thinking", "tool_choice"):
        if found.get(name) is not None:
            found[name] = _converted(found[name])
    if found.get("tools"):
        found["tools"] = [_converted(each) for each in found["tools"]]
    return found


def _converted(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _READERS[name](value) if value is not None and name in _READERS else value
        for name, value in fields.items()
    }


def chat_body(body: Mapping[str, Any], can_call_tools: bool) -> dict[str, Any]:
    """Return the chat request equivalent to a checked body. Raises ApiError for a tool choice without tools."""
    requested: dict[str, Any] = {"model": body["model"], "messages": chat_messages(body)}
    requested |= {name: body[name] for name in SHARED_FIELDS if body.get(name) is not None}
    if "max_tokens" in body:
        requested["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        requested["stop"] = body["stop_sequences"]
    if body.get("stream"):
        requested |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return requested | _output(body) | _tools(body, can_call_tools)


def _check_model(body: Mapping[str, Any]) -> None:
    if not body["model"]:
        raise bad_fields([value_problem("Model is required", "body.model", body["model"])])


def _output(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for the form of the answer and for reasoning."""
    requested: dict[str, Any] = {}
    config = body.get("output_config") or {}
    schema = (config.get("format") or {}).get("schema")
    if schema:
        form = {"name": "json_schema", "schema": schema}
        requested["response_format"] = {"type": "json_schema", "json_schema": form}
    if config.get("effort") is not None:
        requested["reasoning_effort"] = config["effort"]
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "disabled":
        requested["reasoning_effort"] = "none"
    elif thinking.get("type") == "enabled":
        requested["thinking_token_budget"] = thinking["budget_tokens"]
    return requested


def _tools(body: Mapping[str, Any], can_call_tools: bool) -> dict[str, Any]:
    choice = body.get("tool_choice") or {}
    kind = choice.get("type")
    tools = final_tools(body)
    if not tools:
        if kind in ("auto", "any", "tool") and not can_call_tools:
            raise ApiError(_unavailable(choice))
        # A choice that is null lets the parser of calls read the answer, even if there are no tools.
        return {} if kind == "none" else {"tool_choice": None}
    names = {None: "auto", "auto": "auto", "any": "required", "none": "none"}
    requested: dict[str, Any] = {"tools": [_function(each) for each in tools]}
    if kind == "tool":
        if choice["name"] not in [each["name"] for each in tools]:
            raise ApiError(f"The tool with name {choice['name']!r} is not found in the tools list.")
        requested["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    else:
        requested["tool_choice"] = names[kind]
    if choice.get("disable_parallel_tool_use"):
        requested["parallel_tool_calls"] = False
    return requested


def _unavailable(choice: Mapping[str, Any]) -> str:
    if choice["type"] == "auto":
        return '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    named = '"required"' if choice["type"] == "any" else f'function "{choice["name"]}"'
    return f"tool_choice={named} requires --tool-call-parser to be set"


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool["input_schema"]
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    function = {"name": tool["name"], "parameters": parameters}
    function |= {name: tool.get(name) for name in ("description", "strict", "defer_loading")}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
