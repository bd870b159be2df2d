"""Items of a response's input, rewritten as chat messages; several items may make one message."""

from collections.abc import Mapping, Sequence
from typing import Any

from mockserve.protocol.errors import bad_value

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
    if kind in ("function_call", "custom_tool_call"):
        _add_call(messages, item)
    elif kind == "reasoning":
        _add_part(messages, "reasoning", _reasoning(item))
    elif kind in CALL_RESULTS:
        messages.append({"role": "tool", "content": _flat(item.get("output")), "tool_call_id": item.get("call_id")})
    elif kind not in (None, "message"):
        raise bad_value(f"Unsupported input item type: {kind}", "input")
    elif item["role"] == "assistant":
        _add_part(messages, "content", _flat(item["content"]))
    else:
        messages.append({"role": item["role"], "content": _content(item["content"])})


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    function = {"name": item.get("name", ""), "arguments": item.get("arguments", item.get("input", ""))}
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
