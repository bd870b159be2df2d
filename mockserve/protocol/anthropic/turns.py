"""Turns of a conversation as Anthropic's API has them, rewritten as chat messages."""

import json
from collections.abc import Mapping
from typing import Any

from mockserve.protocol.errors import ApiError

BILLING_HEADER = "x-anthropic-billing-header"
"""Text that starts so differs from request to request; it would spoil every prefix."""


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a checked body, the system prompt first."""
    messages: list[dict[str, Any]] = []
    system = _system_text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        messages += _chat_messages(message)
    return messages


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "system":
        text = _system_text(content)
        return [{"role": role, "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turn = _Turn(role)
    for block in content:
        turn.add(block)
    return turn.messages()


class _Turn:
    """One message with blocks. Results of tools become messages of their own, which come before it."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._before: list[dict[str, Any]] = []
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._reasoning: list[str] = []

    def add(self, block: Mapping[str, Any]) -> None:
        kind = block["type"]
        if kind == "text" and block.get("text"):
            self._parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and block.get("source"):
            self._parts.append(_picture(block["source"]))
        elif kind == "thinking" and block.get("thinking") is not None:
            self._reasoning.append(block["thinking"])
        elif kind == "tool_use":
            self._calls.append(_call(block))
        elif kind == "tool_result" and self._role == "user":
            self._before += _results(block)
        elif kind == "tool_result":
            self._parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})

    def messages(self) -> list[dict[str, Any]]:
        message: dict[str, Any] = {"role": self._role}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        if len(self._parts) == 1 and self._parts[0]["type"] == "text":
            message["content"] = self._parts[0]["text"]
        elif self._parts:
            message["content"] = self._parts
        says_nothing = self._role == "user" and "content" not in message
        return self._before if says_nothing else [*self._before, message]


def _system_text(content: Any) -> str:
    texts = [content] if isinstance(content, str) else [each.get("text") for each in content or ()]
    return "".join(each for each in texts if each and not each.startswith(BILLING_HEADER))


def _picture(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url", "")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block.get("id") or "call_0", "type": "function", "function": function}


def _results(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a tool brought back: its text, then its pictures as a message of the user."""
    content = block.get("content") or ""
    items: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [each.get("text", "") for each in items if each.get("type") == "text"]
    for number, each in enumerate(texts):
        if not isinstance(each, str):  # in the words of the language that vLLM is written in
            raise ApiError(f"sequence item {number}: expected str instance, {type(each).__name__} found")
    found: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": "\n".join(texts)}
    ]
    pictures = [_picture(each.get("source", {})) for each in items if each.get("type") == "image"]
    return [*found, {"role": "user", "content": pictures}] if pictures else found
