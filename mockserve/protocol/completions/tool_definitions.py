"""Tools of a request as vLLM hands them on: its fields in vLLM's order, whatever the client sent beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from mockserve.protocol.reading.types import as_flag

OPTIONAL_FLAGS = ("strict", "defer_loading")
"""Fields of a function that are left out when they are null; the others are null themselves then."""


def tool_definitions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every tool of a checked request. A template writes them into the prompt, whose tokens depend on each field."""
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
