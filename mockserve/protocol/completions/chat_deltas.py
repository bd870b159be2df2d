"""The message of a chat reply, whole and piece by piece: content, reasoning and tool calls.

In a stream only what is new is sent; in a whole reply every key is there but `tool_calls`, left out when empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOOL_CALL_PREFIX = "chatcmpl-tool-"
KEY_ORDER = ("content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function; `arguments` are JSON as text."""

    id: str
    name: str
    arguments: str


def content_delta(text: str) -> dict[str, Any]:
    return {"content": text}


def reasoning_delta(text: str) -> dict[str, Any]:
    return {"reasoning": text}


def tool_name_delta(call: int, call_id: str, name: str, arguments: str | None = None) -> dict[str, Any]:
    """The first event of call number `call`."""
    function = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": call_id, "type": "function", "index": call, "function": function}]}


def tool_arguments_delta(call: int, text: str, null_name: bool = False, null_id: bool = False) -> dict[str, Any]:
    """A further part of the arguments of call number `call`, with a null name or a null id where a parser sets them."""
    function = {"name": None, "arguments": text} if null_name else {"arguments": text}
    part = {"index": call, "function": function}
    return {"tool_calls": [{"id": None, **part} if null_id else part]}


def merged(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several deltas that go out together, as one: texts joined, calls one after the other."""
    if len(deltas) == 1:
        return deltas[0]
    found: dict[str, Any] = {}
    for delta in deltas:
        for key, value in delta.items():
            if key == "tool_calls":
                found[key] = _joined_calls([*found.get(key, []), *value])
            elif found.get(key) is None:
                found[key] = value
            elif value is not None:
                found[key] += value
    return {key: found[key] for key in KEY_ORDER if key in found}


def _joined_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of one call made one: the name of the first, the arguments of all."""
    joined: dict[int, dict[str, Any]] = {}
    for call in calls:
        known = joined.get(call["index"])
        if known is None:
            joined[call["index"]] = {**call, "function": dict(call["function"])}
        else:
            function = known["function"]
            function["arguments"] = function.get("arguments", "") + call["function"].get("arguments", "")
    return list(joined.values())


def whole_message(role: str, content: str | None, reasoning: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The message of a whole reply, in vLLM's order of keys."""
    tool_calls = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in calls
    ]
    return {
        "role": role,
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": tool_calls} if tool_calls else {}),
        "reasoning": reasoning,
    }
