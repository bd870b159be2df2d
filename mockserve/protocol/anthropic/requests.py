"""Bodies of Anthropic's Messages API, and the chat requests that say the same."""

from collections.abc import Iterator, Mapping
from typing import Any

from mockserve.protocol.anthropic.fields import (
    COUNT_FIELDS,
    COUNT_REQUIRED,
    MESSAGES_FIELDS,
    MESSAGES_REQUIRED,
    TOOL_CHANGES,
    value_problem,
)
from mockserve.protocol.anthropic.turns import chat_messages
from mockserve.protocol.errors import ApiError, bad_fields
from mockserve.protocol.reading.body import check_types


def tools_at_the_end(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tools of a checked body once all its changes are made. Raises ApiError for a change of an unknown tool."""
    tools: dict[str, Mapping[str, Any]] = {each["name"]: each for each in body.get("tools") or ()}
    removed: set[str] = set()
    for block in _changes(body):
        change = block["tool"]
        if change["type"] == "tool_definition":
            name = change["definition"]["name"]
            tools[name] = change["definition"]
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


def anthropic_error(error: ApiError) -> AnthropicError:
    """What Anthropic's API would call an error."""
    kind = ERROR_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told = AnthropicError(error.message, status=error.status, kind=kind)
    told.is_late = error.is_late
    return told


def check_messages(body: Mapping[str, Any]) -> None:
    """Raise ApiError for a body of POST /v1/messages that is none."""
    check_types(body, MESSAGES_FIELDS, MESSAGES_REQUIRED, ignores_unknown=True)
    _check_model(body)
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
        raise bad_fields([value_problem("thinking.budget_tokens must be less than max_tokens", "body", body)])


def check_count(body: Mapping[str, Any]) -> None:
    """Raise ApiError for a body of POST /v1/messages/count_tokens that is none."""
    check_types(body, COUNT_FIELDS, COUNT_REQUIRED, ignores_unknown=True)
    _check_model(body)


def count_chat_body(body: Mapping[str, Any], can_call_tools: bool) -> dict[str, Any]:
    """The chat request that has the tokens to count: fields of answers mean nothing to it, and are not looked at."""
    return chat_body({name: body[name] for name in COUNT_FIELDS if name in body}, can_call_tools)


def chat_body(body: Mapping[str, Any], can_call_tools: bool) -> dict[str, Any]:
    """The chat request that says the same as a checked body. Raises ApiError for a choice between no tools."""
    wanted: dict[str, Any] = {"model": body["model"], "messages": chat_messages(body)}
    wanted |= {name: body[name] for name in SHARED_FIELDS if body.get(name) is not None}
    if "max_tokens" in body:
        wanted["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        wanted["stop"] = body["stop_sequences"]
    if body.get("stream"):
        wanted |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return wanted | _output(body) | _tools(body, can_call_tools)


def _check_model(body: Mapping[str, Any]) -> None:
    if not body["model"]:
        raise bad_fields([value_problem("Model is required", "body.model", body["model"])])


def _output(body: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the answer, and how much is thought before it."""
    wanted: dict[str, Any] = {}
    config = body.get("output_config") or {}
    schema = (config.get("format") or {}).get("schema")
    if schema:
        form = {"name": "json_schema", "schema": schema}
        wanted["response_format"] = {"type": "json_schema", "json_schema": form}
    if config.get("effort") is not None:
        wanted["reasoning_effort"] = config["effort"]
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "disabled":
        wanted["reasoning_effort"] = "none"
    elif thinking.get("type") == "enabled":
        wanted["thinking_token_budget"] = thinking["budget_tokens"]
    return wanted


def _tools(body: Mapping[str, Any], can_call_tools: bool) -> dict[str, Any]:
    choice = body.get("tool_choice") or {}
    kind = choice.get("type")
    tools = tools_at_the_end(body)
    if not tools:
        if kind in ("auto", "any", "tool") and not can_call_tools:
            raise ApiError(_unavailable(choice))
        return {}
    names = {None: "auto", "auto": "auto", "any": "required", "none": "none"}
    wanted: dict[str, Any] = {"tools": [_function(each) for each in tools]}
    if kind == "tool":
        if choice["name"] not in [each["name"] for each in tools]:
            raise ApiError(f"The tool with name {choice['name']!r} is not found in the tools list.")
        wanted["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    else:
        wanted["tool_choice"] = names[kind]
    if choice.get("disable_parallel_tool_use"):
        wanted["parallel_tool_calls"] = False
    return wanted


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
