"""Items of a response's input, rewritten as chat messages; several items may make one message."""

from collections.abc import Mapping, Sequence
from typing import Any

from mockserve.protocol.errors import bad_value, internal_error
from mockserve.protocol.responses.item_fields import answer_problems, is_answer, is_call, is_thought
from mockserve.protocol.responses.tools import arguments_of, flat_name
from mockserve.protocol.validation_text import unreadable

CALL_RESULTS = ("function_call_output", "custom_tool_call_output")
UNFINISHED = ("in_progress", "incomplete")


def chat_messages(
    instructions: str | None,
    given: str | Sequence[Mapping[str, Any]],
    earlier: Sequence[Mapping[str, Any]],
    earlier_output: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The conversation: instructions, what was said before the response that is continued, that response, the input.

    Instructions do not carry over from response to response. Raises ApiError for an item that cannot be used.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    messages += [dict(each) for each in earlier if each.get("role") != "system"]
    messages += [
        {"role": "assistant", "content": part["text"]}
        for item in earlier_output
        if item["type"] == "message"
        for part in item["content"]
    ]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    added: list[dict[str, Any]] = []
    for item in given:
        _add(added, item)
    return [*messages, *added]


def continues_last_item(given: str | Sequence[Mapping[str, Any]]) -> bool:
    """Whether the input ends with an answer that is not finished, which is to be gone on with."""
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add what an item says, to the last message if that is an assistant's and has not said such a thing yet."""
    kind = item.get("type")
    if kind == "custom_tool_call" or (kind == "function_call" and is_call(item)):
        _add_call(messages, item)
    elif kind == "reasoning" and is_thought(item):
        _add_part(messages, "reasoning", _reasoning(item))
    elif kind in CALL_RESULTS:
        content = _content(item.get("output"))
        messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
    elif "role" not in item:
        raise bad_value(f"Unsupported input item type: {kind}", "input")
    elif item["role"] == "assistant" and (said := _said(item)) is not None:
        _add_part(messages, "content", said)
    else:
        content = {"content": _content(item["content"])} if "content" in item else {}
        messages.append({"role": item["role"], **content})


def _said(item: Mapping[str, Any]) -> str | None:
    """What an answer says, or None if a template gets it as it came. Raises ApiError where vLLM fails."""
    content = item["content"]
    if item.get("type") == "message" and is_answer(item):
        if not content:
            raise internal_error("list index out of range")
        if content[0]["type"] == "refusal":
            raise internal_error("'ResponseOutputRefusal' object has no attribute 'text'")
    elif item.get("type") == "message" and "id" in item and "status" in item:
        if problems := answer_problems(content):
            raise unreadable("ValidatorIterator", problems)
        return None
    if isinstance(content, str):
        return content
    text = content[0].get("text") if content else None
    return None if text is None else str(text)


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    if item["type"] == "custom_tool_call":
        arguments = arguments_of(item.get("input") or "")
    else:
        arguments = item.get("arguments", "")
    name = item.get("name", "")
    if item.get("namespace") and item["type"] == "function_call":
        name = flat_name(item["namespace"], name)
    function = {"name": name, "arguments": arguments}
    call = {"id": item.get("call_id", ""), "type": "function", "function": function}
    last = _last_of_assistant(messages)
    if last is None:
        messages.append({"role": "assistant", "tool_calls": [call]})
    else:
        last.setdefault("tool_calls", []).append(call)


def _add_part(messages: list[dict[str, Any]], name: str, text: str) -> None:
    last = _last_of_assistant(messages)
    if last is None or last.get(name) is not None:
        messages.append({"role": "assistant", name: text})
    else:
        last[name] = text


def _last_of_assistant(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise bad_value("Encrypted content is not supported.", "input")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    return str(parts[0].get("text", ""))


def _flat(content: Any) -> str:
    """Content that the template takes as text only: that of its first part."""
    if isinstance(content, str) or content is None:
        return content or ""
    return str(content[0].get("text", "")) if content else ""


def _content(content: Any) -> Any:
    """Content with its parts called as chat calls them."""
    if not isinstance(content, list):
        return content
    return [_part(each) if isinstance(each, Mapping) else each for each in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url") or ""}}
    return dict(part)
