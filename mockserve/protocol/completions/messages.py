"""Schemas of chat messages in vLLM's order, errors of vLLM for others, and further arguments of chat templates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mockserve.protocol.completions.content_parts import (
    EMBEDS_PARTS,
    MEDIA_PARTS,
    check_content,
    flatten_text,
    part_type,
    parts_of,
)
from mockserve.protocol.errors import ApiError, Problem, bad_fields, bad_value, unhandled_error, unreadable
from mockserve.protocol.reading.containers import AnyOf, Iterable, ListOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, OneOf, Text, as_flag

_TEXT_OR_PARTS: FieldType = AnyOf((Text(), Iterable(Anything())))


def _shape(name: str, fields: dict[str, FieldType], required: tuple[str, ...]) -> FieldType:
    return Named(name, Record(fields, required, kind="dict_type"))


def _role(role: str) -> dict[str, FieldType]:
    return {"role": OneOf((role,))}


_FUNCTION_CALL: FieldType = Record(
    {
        "id": Text(),
        "function": Record({"arguments": Text(), "name": Text()}, ("arguments", "name"), kind="dict_type"),
        "type": OneOf(("function",)),
    },
    ("id", "function", "type"),
    kind="dict_type",
)
_MESSAGE_SHAPES: tuple[FieldType, ...] = (
    _shape(
        "ChatCompletionDeveloperMessageParam",
        {"content": _TEXT_OR_PARTS, **_role("developer"), "name": Text()},
        ("content", "role"),
    ),
    _shape(
        "ChatCompletionSystemMessageParam",
        {"content": _TEXT_OR_PARTS, **_role("system"), "name": Text()},
        ("content", "role"),
    ),
    _shape(
        "ChatCompletionUserMessageParam",
        {"content": _TEXT_OR_PARTS, **_role("user"), "name": Text()},
        ("content", "role"),
    ),
    _shape(
        "ChatCompletionAssistantMessageParam",
        {
            **_role("assistant"),
            "content": Nullable(_TEXT_OR_PARTS),
            "name": Text(),
            "refusal": Nullable(Text()),
            "tool_calls": Iterable(Anything()),
        },
        ("role",),
    ),
    _shape(
        "ChatCompletionToolMessageParam",
        {"content": _TEXT_OR_PARTS, **_role("tool"), "tool_call_id": Text()},
        ("content", "role", "tool_call_id"),
    ),
    _shape(
        "ChatCompletionFunctionMessageParam",
        {"content": Nullable(Text()), "name": Text(), **_role("function")},
        ("content", "name", "role"),
    ),
    _shape(
        "CustomChatCompletionMessageParam",
        {
            "role": Text(),
            "content": AnyOf((Text(), ListOf(Anything()))),
            "name": Text(),
            "tool_call_id": Nullable(Text()),
            "tool_calls": Nullable(ListOf(_FUNCTION_CALL)),
        },
        ("role",),
    ),
    Named("Message", Record({"author": Anything(), "content": ListOf(Anything())}, ("author",))),
)
MESSAGE: FieldType = AnyOf(
    _MESSAGE_SHAPES,
    tag="role",
    likely=dict(zip(("developer", "system", "user", "assistant", "tool", "function"), _MESSAGE_SHAPES, strict=False)),
)

TOOL_CALL: FieldType = AnyOf(
    (
        _shape(
            "ChatCompletionMessageFunctionToolCallParam",
            {
                "id": Text(),
                "function": Record({"arguments": Text(), "name": Text()}, ("arguments", "name"), kind="dict_type"),
                "type": OneOf(("function",)),
            },
            ("id", "function", "type"),
        ),
        _shape(
            "ChatCompletionMessageCustomToolCallParam",
            {
                "id": Text(),
                "custom": Record({"input": Text(), "name": Text()}, ("input", "name"), kind="dict_type"),
                "type": OneOf(("custom",)),
            },
            ("id", "custom", "type"),
        ),
    )
)
"""One call of an assistant message."""


FEWEST_UNREADABLE_CHARS = 500
"""Minimum length of arguments that may be unparsable because of thousands of digits or deep nesting."""


class Message(NamedTuple):
    """One turn of a conversation, its content flattened to text, with a `MEDIA_MARK` for each image or recording."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Medium:
    """An image or a recording: its modality and its identity."""

    modality: str
    source: str


def read_messages(messages: list[Any]) -> tuple[Message, ...]:
    """Return the conversation as text. Raises ApiError when it is empty."""
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return tuple(Message(str(each["role"]), flatten_text(each.get("content"))) for each in messages)


def check_text_only(messages: list[Any], model: str) -> None:
    """Raise ApiError for the first image or recording, which a model that takes text only refuses."""
    for message in messages:
        for part in parts_of(message):
            kind = part_type(part)
            if kind in EMBEDS_PARTS:
                raise ApiError("The model is not multimodal.")
            if kind in MEDIA_PARTS:
                raise ApiError(f"{model} is not a multimodal model")


def media_of(messages: list[Any]) -> list[Medium]:
    """Return all images and recordings, in order."""
    return [
        Medium(MEDIA_PARTS[kind], str(part.get("image_url" if kind == "input_image" else kind)))
        for message in messages
        for part in parts_of(message)
        if (kind := part_type(part)) in MEDIA_PARTS
    ]


def check_iterable_calls(messages: Any) -> None:
    """Raise ApiError for tool calls that are not iterable; vLLM checks them before the messages."""
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls is not None and not isinstance(calls, list | str | dict):
            raise ApiError(f"{type(calls).__name__!r} object is not iterable")


def check_parts(messages: list[Any], pydantic_class: str | None = None, is_typed: bool = True) -> None:
    """Raise ApiError for invalid content parts and tool calls.

    `pydantic_class` is the pydantic class that refuses tool calls, where vLLM returns pydantic's message.
    """
    for message in messages:
        if "role" not in message:  # harmony's messages have an author instead, which no chat template supports
            raise ApiError("a message must have a 'role'")
        check_content(message, is_typed)
        _check_calls(message, pydantic_class)


def _check_calls(message: dict[str, Any], pydantic_class: str | None) -> None:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | str | dict):  # vLLM accepts any iterable
        return
    for index, call in enumerate(calls):
        if pydantic_class is not None and (problems := TOOL_CALL.problems(call, str(index))):
            raise unreadable(pydantic_class, problems)
        if problems := TOOL_CALL.problems(call, f"body.{index}"):
            raise bad_fields([_without_arguments(each) for each in problems])
    if message["role"] == "assistant" and any("function" not in call for call in calls if isinstance(call, dict)):
        raise bad_value("chat completions only support assistant tool_calls of type 'function'.", "tool_calls")
    for call in calls:
        _check_arguments(call)


def _without_arguments(problem: Problem) -> Problem:
    """Return a problem with vLLM's location: pydantic adds an `arguments` to it, which vLLM removes."""
    return replace(problem, location=problem.location.removesuffix(".arguments"))


def _check_arguments(call: Any) -> None:
    """Raise ApiError for arguments that vLLM cannot parse for the chat template. Invalid JSON remains text."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str) or len(arguments) < FEWEST_UNREADABLE_CHARS:
        return
    try:
        json.loads(arguments)
    except json.JSONDecodeError:
        return
    except ValueError as error:
        raise ApiError(str(error)) from None
    except RecursionError as error:
        raise unhandled_error(str(error)) from None


def last_content(messages: list[Any], role: str) -> str:
    """Return the text of the last message, if its role is `role`, for `echo` to repeat."""
    last = messages[-1]
    return flatten_text(last.get("content")) if last["role"] == role else ""


NO_EFFORT = "none"


def effort_arguments(effort: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template variables for a reasoning effort: the effort, and a switch for templates without efforts.

    `given` are the template's variables in the request, which override the variables derived from the effort.
    """
    if effort is None:
        return {}
    thinks = {} if "enable_thinking" in given else {"enable_thinking": effort != NO_EFFORT}
    return {"reasoning_effort": effort, **thinks}


def template_arguments(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of the template, as vLLM lists them for the server that will parse the answer."""
    adds, documents = body.get("add_generation_prompt"), body.get("documents")
    given = body.get("chat_template_kwargs") or {}
    return {
        "cohere_format": "cmd4",
        **defaults,
        **given,
        "add_generation_prompt": True if adds is None else adds,
        "continue_final_message": bool(body.get("continue_final_message")),
        **({} if documents is None else {"documents": documents}),
        **effort_arguments(body.get("reasoning_effort"), given),
    }


OPTIONAL_FLAGS = ("strict", "defer_loading")
"""Fields of a function that are omitted when they are null; other null fields are included."""


def tool_definitions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of a checked request. A template writes them into the prompt, so each field affects the
    tokens."""
    return [_tool(each) for each in tools]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = tool["function"]
    function = {name: given.get(name) for name in ("name", "description", "parameters")}
    is_deferred = _flag(tool, "defer_loading")
    for name in OPTIONAL_FLAGS:
        flag = _flag(given, name)
        if flag is None and name == "defer_loading":
            flag = is_deferred
        if flag is not None:
            function[name] = flag
    shown = {"type": "function", "function": function}
    return shown if is_deferred is None else {**shown, "defer_loading": is_deferred}


def _flag(given: Mapping[str, Any], name: str) -> bool | None:
    value = given.get(name)
    return None if value is None else as_flag(value)
