"""Tools of a response as the chat that says the same has them, and their calls as a response names them.

A custom tool is a function with one argument of text. A function of a namespace has the namespace in its name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
NAMESPACE_SEPARATOR = "__"
FUNCTION_FIELDS = ("name", "description", "parameters", "strict", "defer_loading")

_BEGUN_INPUT = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{{4}}))*)')


@dataclass(frozen=True, slots=True)
class ToolNames:
    """Which functions of a chat are custom tools, and which belong to a namespace (and have another name there)."""

    custom: frozenset[str] = frozenset()
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> "ToolNames":
        """The names of checked tools."""
        custom = frozenset(each["name"] for each in tools if each["type"] == "custom")
        namespaced = {
            flat_name(each["name"], inner["name"]): (each["name"], inner["name"])
            for each in tools
            if each["type"] == "namespace"
            for inner in each["tools"]
            if inner.get("type") == "function"
        }
        return cls(custom, namespaced)

    def of_call(self, name: str) -> tuple[str | None, str]:
        """The namespace and the name of a called function."""
        return self.namespaced.get(name, (None, name))


def flat_name(namespace: str, name: str) -> str:
    """The name by which a model calls a function of a namespace."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def function_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The checked tools that a model can call, as a chat request has them."""
    return [
        {"type": "function", "function": {name: each[name] for name in FUNCTION_FIELDS if each.get(name) is not None}}
        for each in _functions(tools)
    ]


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for tool in tools:
        if tool["type"] == "function":
            yield tool
        elif tool["type"] == "custom":
            yield {"name": tool["name"], "description": tool.get("description"), "parameters": CUSTOM_PARAMETERS}
        elif tool["type"] == "namespace":
            for inner in tool["tools"]:
                if inner.get("type") == "function":
                    yield {**inner, "name": flat_name(tool["name"], inner["name"])}


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with. Arguments of another form are that text."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def begun_input(arguments: str) -> str:
    """As much of that text as the beginning of the arguments has; half a character is left out."""
    begun = _BEGUN_INPUT.match(arguments)
    if begun is None:
        return ""
    text: str = json.loads(f'"{begun[1]}"', strict=False)
    return text[:-1] if text and "\ud800" <= text[-1] <= "\udbff" else text


def arguments_of(text: str) -> str:
    """The arguments that say the same as the input of a custom tool."""
    return json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)
