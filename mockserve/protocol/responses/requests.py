"""Bodies of POST /v1/responses, their fields in the order of vLLM's errors, and the equivalent chat requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.completions.fields import (
    MAX_STOP_STRINGS,
    MEDIA_ARGUMENTS,
    REASONING_EFFORTS,
)
from mockserve.protocol.errors import ApiError, Problem, bad_value
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
)
from mockserve.protocol.refusals import refuse_bad_salt, refuse_media_arguments
from mockserve.protocol.responses.input_items import FORM, ITEM, continues_last_item
from mockserve.protocol.responses.tools import TOOL, TOOL_CHOICE, flat_name, function_tools
from mockserve.protocol.sampling import STRUCTURED_OUTPUTS

LOGPROBS_INCLUDED = "message.output_text.logprobs"
LARGEST_PENALTY = 2

_INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    LOGPROBS_INCLUDED,
    "reasoning.encrypted_content",
)


@dataclass(frozen=True, slots=True)
class Penalty:
    """A number between -2 and 2."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = Number().problems(value, location)
        if wrong:
            return wrong
        if float(value) > LARGEST_PENALTY:
            message, context = f"Input should be less than or equal to {LARGEST_PENALTY}", {"le": 2.0}
            return [Problem("less_than_equal", location, message, value, context)]
        if float(value) < -LARGEST_PENALTY:
            message, context = f"Input should be greater than or equal to -{LARGEST_PENALTY}", {"ge": -2.0}
            return [Problem("greater_than_equal", location, message, value, context)]
        return []

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": -LARGEST_PENALTY, "maximum": LARGEST_PENALTY}


_TEXT: FieldType = Nullable(Text())
_FLAG: FieldType = Nullable(Flag())
_NUMBER: FieldType = Nullable(Number())
_FREE_OBJECT: FieldType = Nullable(MapOf(Anything()))
_REASONING: FieldType = Nullable(
    Record(
        {
            "effort": Nullable(OneOf(REASONING_EFFORTS)),
            "generate_summary": Nullable(OneOf(("auto", "concise", "detailed"))),
            "summary": Nullable(OneOf(("auto", "concise", "detailed"))),
        }
    )
)
_TEXT_CONFIG: FieldType = Nullable(
    Record(
        {
            "format": Nullable(FORM),
            "verbosity": Nullable(OneOf(("low", "medium", "high"))),
        }
    )
)
_CACHE_OPTIONS: FieldType = Nullable(
    Record(
        {
            "mode": OneOf(("implicit", "explicit")),
            "ttl": OneOf(("30m",)),
            "comparison_response_id": _TEXT,
            "prewarm": _FLAG,
        }
    )
)

RESPONSE_FIELDS: Mapping[str, FieldType] = {
    "background": _FLAG,
    "include": Nullable(ListOf(OneOf(_INCLUDABLE))),
    "input": AnyOf((Text(), ListOf(ITEM))),
    "instructions": _TEXT,
    "max_output_tokens": Nullable(Integer()),
    "max_tool_calls": Nullable(Integer()),
    "metadata": Nullable(MapOf(Text())),
    "model": _TEXT,
    "logit_bias": Nullable(MapOf(Number())),
    "parallel_tool_calls": _FLAG,
    "previous_response_id": _TEXT,
    "reasoning": _REASONING,
    "include_reasoning": Flag(),
    "service_tier": OneOf(("auto", "default", "flex", "scale", "priority")),
    "store": _FLAG,
    "stream": _FLAG,
    "temperature": _NUMBER,
    "text": _TEXT_CONFIG,
    "tool_choice": TOOL_CHOICE,
    "tools": ListOf(TOOL),
    "top_logprobs": Nullable(Integer()),
    "top_p": _NUMBER,
    "top_k": Nullable(Integer()),
    "min_p": _NUMBER,
    "truncation": Nullable(OneOf(("auto", "disabled"))),
    "user": _TEXT,
    "skip_special_tokens": _FLAG,
    "spaces_between_special_tokens": Flag(),
    "include_stop_str_in_output": Flag(),
    "presence_penalty": Nullable(Penalty()),
    "frequency_penalty": Nullable(Penalty()),
    "prompt_cache_key": _TEXT,
    "prompt_cache_options": _CACHE_OPTIONS,
    "prompt_cache_retention": Nullable(OneOf(("in_memory", "24h"))),
    "safety_identifier": _TEXT,
    "watermarking": _FLAG,
    "request_id": Text(),
    "session_id": _TEXT,
    **MEDIA_ARGUMENTS,
    "priority": Integer(SMALLEST_INT64, LARGEST_INT64),
    "mm_payload": OneOf(("tensors", "none")),
    "return_mm_kwargs": _FLAG,
    "cache_salt": Nullable(Text(is_bounded=True)),
    "enable_response_messages": Flag(),
    "previous_input_messages": Nullable(ListOf(MapOf(Anything()))),
    "structured_outputs": STRUCTURED_OUTPUTS,
    "repetition_penalty": _NUMBER,
    "seed": Nullable(Integer(SMALLEST_INT64, LARGEST_INT64)),
    "stop": Nullable(AnyOf((Text(), ListOf(Text(), MAX_STOP_STRINGS)))),
    "stop_token_ids": Nullable(ListOf(Integer())),
    "ignore_eos": Flag(),
    "vllm_xargs": _FREE_OBJECT,
    "kv_transfer_params": _FREE_OBJECT,
    "ec_transfer_params": _FREE_OBJECT,
    "chat_template_kwargs": _FREE_OBJECT,
}
RESPONSE_REQUIRED = ("input",)


COPIED_FIELDS = (
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
"""Fields with an equal meaning in a chat request."""

NAMED_TOOLS = ("function", "custom")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A checked request. `body` is unchanged, except for a tool choice without tools."""

    body: Mapping[str, Any]
    model: str
    streams: bool
    in_background: bool
    stores: bool
    includes_logprobs: bool
    shows_messages: bool


def parse_response(body: Mapping[str, Any]) -> ResponseRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
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


def chat_body(api_request: ResponseRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the equivalent chat request. Raises ApiError for contradictory constraints on the answer."""
    body = api_request.body
    requested: dict[str, Any] = {"model": api_request.model, "messages": messages, "add_special_tokens": True}
    requested |= {name: body[name] for name in COPIED_FIELDS if body.get(name) is not None}
    if requested.get("stop") == "":
        del requested["stop"]  # vLLM takes a stop string that is empty for none at all
    if body.get("max_output_tokens") is not None:
        requested["max_completion_tokens"] = body["max_output_tokens"]
    if api_request.includes_logprobs:
        requested |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if api_request.streams:
        requested["stream"] = True
    if body.get("truncation", "disabled") != "disabled":
        requested["truncate_prompt_tokens"] = -1
    if continues_last_item(body["input"]):
        requested |= {"continue_final_message": True, "add_generation_prompt": False}
    effort = (body.get("reasoning") or {}).get("effort")
    if effort is not None:
        requested["reasoning_effort"] = effort
    return requested | _form(body) | _tools(body)


def _checked_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    tools, choice = body.get("tools"), body.get("tool_choice", "auto")
    if isinstance(tools, int | float):
        raise ApiError(f"object of type '{type(tools).__name__}' has no len()")
    if isinstance(tools, list):
        _refuse_grammars(tools)
    names_one = isinstance(choice, dict) and choice.get("type") in NAMED_TOOLS
    if not tools:
        if choice == "required":
            raise bad_value("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
        if names_one:
            raise _unknown_tool()
        return {**body, "tool_choice": "none"} if choice in ("auto", "none") else body
    if names_one and isinstance(tools, list):
        name = choice.get("name")
        if not name:
            raise _unknown_tool()
        resolved = _resolved(name, tools)
        return body if resolved == name else {**body, "tool_choice": {**choice, "name": resolved}}
    return body


def _refuse_grammars(tools: list[Any]) -> None:
    for tool in tools:
        form = tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else None
        if isinstance(form, dict) and form.get("type") == "grammar":
            message = "Custom tools with a grammar format are not supported; only free-form text custom tools are "
            raise bad_value(f"{message}accepted.", "tools")


def _resolved(name: Any, tools: list[Any]) -> Any:
    """Return the full name of the chosen tool, which may be in a namespace."""
    exact: set[str] = set()
    candidates: list[str] = []
    for tool in tools:
        found = tool if isinstance(tool, dict) else {}
        if found.get("type") == "namespace":
            inner, namespace = found.get("tools"), found.get("name")
            if not isinstance(inner, list) or not isinstance(namespace, str):
                return name
            names = [each.get("name") for each in inner if isinstance(each, dict)]
            flat = [(each, flat_name(namespace, each)) for each in names if isinstance(each, str)]
            exact |= {full for _, full in flat}
            candidates += [full for local, full in flat if local == name]
        elif isinstance(found.get("name"), str):
            exact.add(found["name"])
    if name in exact:
        return name
    if not candidates:
        raise _unknown_tool()
    if len(candidates) > 1:
        message = (
            f"Tool choice '{name}' is ambiguous: it is defined in more than one namespace ({', '.join(candidates)}). "
            "Select it by its full '<namespace>__<name>' name."
        )
        raise bad_value(message, "tool_choice")
    return candidates[0]


def _unknown_tool() -> ApiError:
    return bad_value("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    requested = (body.get("text") or {}).get("format")
    if requested is None:
        return {}
    if body.get("structured_outputs") is not None:
        raise bad_value("Cannot specify both structured_outputs and text.format", "structured_outputs")
    if requested["type"] == "json_schema" and requested.get("schema") is not None:
        schema = {"name": requested.get("name") or "schema", "schema": requested["schema"]}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": "json_object"}} if requested["type"] == "json_object" else {}


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    functions = function_tools(body.get("tools") or ())
    choice = body.get("tool_choice", "auto")
    names_one = isinstance(choice, Mapping) and choice.get("type") in NAMED_TOOLS
    if not functions:
        if names_one or choice == "required":
            message = "tool_choice requires a function call, but tools contains no function tool the model can call."
            raise bad_value(message, "tool_choice")
        return {}
    if names_one:
        name = choice["name"]
        if not any(each["function"]["name"] == name for each in functions):
            raise ApiError(f"The tool with name '{name}' is not found in the tools list.")
        choice = {"type": "function", "function": {"name": name}}
    elif isinstance(choice, Mapping):
        # vLLM looks for calls in a stream then, but not in a whole answer.
        choice = "auto" if body.get("stream") else "none"
    return {"tools": functions, "tool_choice": choice}
