"""Tools that come and go during a conversation: what the system says of them, applied to those of the request."""

from collections.abc import Iterator, Mapping
from typing import Any

from mockserve.protocol.anthropic.fields import TOOL_CHANGES
from mockserve.protocol.errors import ApiError


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
