"""Bodies of POST /v1/responses, and the chat requests that say the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.refusals import refuse_bad_salt, refuse_media_arguments
from mockserve.protocol.responses.fields import LOGPROBS_INCLUDED, RESPONSE_FIELDS, RESPONSE_REQUIRED
from mockserve.protocol.responses.input import continues_last_item

COPIED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "vllm_xargs",
    "kv_transfer_params",
    "chat_template_kwargs",
    "include_reasoning",
    "parallel_tool_calls",
    "priority",
    "cache_salt",
    "structured_outputs",
)
"""Fields that mean the same in a chat request."""

NAMED_TOOLS = ("function", "custom")
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""A tool that takes free text is called like a function with one argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A checked request. `body` is as it came, but for a tool choice where there are no tools."""

    body: Mapping[str, Any]
    model: str
    streams: bool
    in_background: bool
    stores: bool
    includes_logprobs: bool
    shows_messages: bool


def parse_response(body: Mapping[str, Any]) -> ResponseRequest:
    """Raises ApiError for whatever vLLM refuses before it looks at the model."""
    body = _checked_tools(body)
    if body.get("prompt") is not None:
        raise bad_value("prompt template is not supported", "prompt")
    if body.get("background") and not body.get("store", True):
        raise bad_value("background can only be used when `store` is true", "background")
    refuse_bad_salt(body.get("cache_salt"))
    check_types(body, RESPONSE_FIELDS, RESPONSE_REQUIRED)
    refuse_media_arguments(dict(body))
    fields = Fields(dict(body))
    return ResponseRequest(
        body=body,
        model=fields.text("model") or "",
        streams=fields.flag("stream"),
        in_background=fields.flag("background"),
        stores=fields.flag("store", True),
        includes_logprobs=LOGPROBS_INCLUDED in (body.get("include") or ()),
        shows_messages=fields.flag("enable_response_messages"),
    )


def chat_body(asked: ResponseRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The chat request that says the same. Raises ApiError for forms of the answer that exclude each other."""
    body = asked.body
    wanted: dict[str, Any] = {"model": asked.model, "messages": messages, "add_special_tokens": True}
    wanted |= {name: body[name] for name in COPIED if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        wanted["max_completion_tokens"] = body["max_output_tokens"]
    if asked.includes_logprobs:
        wanted |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if asked.streams:
        wanted["stream"] = True
    if body.get("truncation", "disabled") != "disabled":
        wanted["truncate_prompt_tokens"] = -1
    if continues_last_item(body["input"]):
        wanted |= {"continue_final_message": True, "add_generation_prompt": False}
    effort = (body.get("reasoning") or {}).get("effort")
    if effort is not None:
        wanted["reasoning_effort"] = effort
    return wanted | _form(body) | _tools(body)


def _checked_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    tools, choice = body.get("tools"), body.get("tool_choice", "auto")
    names_one = isinstance(choice, dict) and choice.get("type") in NAMED_TOOLS
    if not tools:
        if choice == "required":
            raise bad_value("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
        if names_one:
            raise _unknown_tool()
        return {**body, "tool_choice": "none"} if choice in ("auto", "none") else body
    named = [each.get("name") for each in tools if isinstance(each, dict)] if isinstance(tools, list) else None
    if names_one and named is not None and choice.get("name") not in named:
        raise _unknown_tool()
    return body


def _unknown_tool() -> ApiError:
    return bad_value("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (body.get("text") or {}).get("format")
    if wanted is None:
        return {}
    if body.get("structured_outputs") is not None:
        raise bad_value("Cannot specify both structured_outputs and text.format", "structured_outputs")
    if wanted["type"] == "json_schema" and wanted.get("schema") is not None:
        schema = {"name": wanted.get("name") or "schema", "schema": wanted["schema"]}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": "json_object"}} if wanted["type"] == "json_object" else {}


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    functions = [_function(each) for each in body.get("tools") or () if each["type"] in NAMED_TOOLS]
    if not functions:
        return {}
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, Mapping):
        named = choice.get("type") in NAMED_TOOLS
        choice = {"type": "function", "function": {"name": choice["name"]}} if named else "auto"
    return {"tools": functions, "tool_choice": choice}


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = CUSTOM_PARAMETERS if tool["type"] == "custom" else tool.get("parameters")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
