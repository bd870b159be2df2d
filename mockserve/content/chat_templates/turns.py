"""Messages of a request as chat templates see them: the keys that vLLM keeps, in its order."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mockserve.protocol.completions.messages import MEDIA_PARTS, TEXT_PARTS, TOOL_REFERENCE, part_text

Turn: TypeAlias = Mapping[str, Any]
"""A message as templates see it: `role`, `content`, and what else its role allows."""

BILLING_HEADER = "x-anthropic-billing-header"
"""A line that starts so differs from request to request; vLLM drops it, since it would spoil every prefix."""

_KNOWN_PART_KEYS = frozenset(
    {
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url"),
        *("input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"),
        *("video_embeds", "video_url"),
    }
)
"""Keys of content parts that vLLM gives a meaning to; templates see all others as they came."""
_CALL_KEYS, _FUNCTION_KEYS = ("id", "function", "type"), ("arguments", "name")


def turns_of(messages: Sequence[Mapping[str, Any]], takes_parts: bool) -> list[Turn]:
    """The messages of a checked request; with `takes_parts`, contents are lists of parts instead of one string."""
    return [_turn(message, takes_parts) for message in messages]


def _turn(message: Mapping[str, Any], takes_parts: bool) -> Turn:
    role = message["role"]
    turn: dict[str, Any] = {"role": role, "content": _content(message, takes_parts)}
    if role == "assistant":
        turn |= _assistant_fields(message)
    elif role == "tool" and "tool_call_id" in message:
        turn["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            turn[key] = message[key]
    if role == "developer":
        turn["tools"] = message.get("tools")
    return turn


def _content(message: Mapping[str, Any], takes_parts: bool) -> Any:
    role, content = message["role"], message.get("content")
    if isinstance(content, str) and role != "system":
        return [{"type": "text", "text": content}] if takes_parts and role != "tool" else content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    if role == "system":
        parts = _without_billing(parts)
    if not takes_parts:
        return "\n".join(part_text(part) for part in parts)
    shown = [_shown_part(part) for part in parts]
    # Templates know results of tools as strings, unless there is more than text in them.
    if role == "tool" and all(each["type"] == "text" for each in shown):
        return "\n".join(each["text"] for each in shown)
    return shown


def _without_billing(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    kept: list[Mapping[str, Any]] = []
    for part in parts:
        text = part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append({**part, "text": rest})
    return kept


def _shown_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == TOOL_REFERENCE:
        return {"type": kind, "name": part.get("name")}
    others = {key: value for key, value in part.items() if key not in _KNOWN_PART_KEYS}
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part_text(part), **others}
    return {"type": MEDIA_PARTS.get(kind, kind), **others}


def _assistant_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    calls = message.get("tool_calls")
    if calls:
        found["tool_calls"] = [_call(each) for each in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        found["reasoning"] = found["reasoning_content"] = reasoning
    return found


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    parsed = {**function, "arguments": _arguments(function.get("arguments"))}
    return _in_order({**call, "function": _in_order(parsed, _FUNCTION_KEYS)}, _CALL_KEYS)


def _in_order(found: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """`found` with `keys` before all others."""
    return {key: found[key] for key in (*keys, *found) if key in found}


def _arguments(given: Any) -> dict[str, Any]:
    """What an earlier call was given. If that is no JSON object, the conversation goes on with an empty one."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}
