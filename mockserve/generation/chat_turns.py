"""Turns of a conversation in the form of chat templates, and ChatML, the default template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

from mockserve.protocol.chat_messages import (
    MEDIA_PARTS,
    TEXT_PARTS,
    TOOL_REFERENCE,
    flatten_text,
    has_text,
    part_text,
    part_type,
)
from mockserve.protocol.errors import ApiError

Turn: TypeAlias = Mapping[str, Any]
"""A message in the form of templates: `role`, `content`, and further keys of its role."""

SYSTEM, DEVELOPER = "system", "developer"

ITEMS_PER_FREE = 4096
"""Number of turns or prompts freed in one call, which takes a few milliseconds."""


def free(items: list[Any]) -> None:
    """Empty a list in pieces. Freeing hundreds of thousands of turns or prompts in one C call would block every
    thread."""
    while items:
        del items[-ITEMS_PER_FREE:]


def merge_developer_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with developer turns as system turns; system turns are merged unless only the first turn is one.

    A conversation without a developer is returned unchanged.
    """
    if not any(each.get("role") == DEVELOPER for each in turns):
        return list(turns)
    turns = [
        {**{key: value for key, value in each.items() if key != "tools"}, "role": SYSTEM}
        if each.get("role") == DEVELOPER
        else each
        for each in turns
    ]
    if not any(each.get("role") == SYSTEM for each in turns[1:]):
        return turns
    said = [_content_text(each.get("content")) for each in turns if each.get("role") == SYSTEM]
    others = [each for each in turns if each.get("role") != SYSTEM]
    return [{"role": SYSTEM, "content": "\n\n".join(text for text in said if text)}, *others]


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


_KEY = "content"
MARK = "\ue001end of the final message\ue001"
"""Mark behind the final text while the template is rendered; no client's text contains it."""
_PROBE = f"{MARK} "
"""The mark with a space behind it, which a template that trims contents removes."""


def with_end_mark(turns: Sequence[Turn], source: str) -> tuple[list[Turn], str]:
    """Return the turns with the mark behind the text of the last one, and that text.

    Raises ValueError if the last turn has no text to continue.
    """
    *earlier, last = turns
    content = last.get(_KEY)
    if content is None:
        raise ValueError(f'continue_final_message is set but the final message has no "{_KEY}" to continue!')
    if _KEY not in source:
        raise ValueError(
            f'continue_final_message is set to "{_KEY}" but this is not an accepted field in the chat_template'
        )
    if isinstance(content, str):
        return [*earlier, {**last, _KEY: content + _PROBE}], content
    parts, text = _marked_parts(content)
    return [*earlier, {**last, _KEY: parts}], text


def _marked_parts(content: Sequence[Any]) -> tuple[list[Any], str]:
    for place in range(len(content) - 1, -1, -1):
        part = content[place]
        if "text" in part:
            return [*content[:place], {**part, "text": part["text"] + _PROBE}, *content[place + 1 :]], part["text"]
    raise ValueError("continue_final_message is set but we could not find any text to continue in the final message!")


def cut_at_end_mark(rendered: str, final_text: str) -> str:
    """Return the rendered prompt up to the mark. Trailing white space remains unless the template removes it.

    Raises ValueError where the template has left out the final text.
    """
    text = final_text.strip()
    if text not in rendered or MARK not in rendered:
        raise ValueError(
            "continue_final_message is set but the final message does not appear in the chat after applying the chat "
            "template! This can happen if the chat template deletes portions of the final message. Please verify the "
            "chat template and final message in your chat to ensure they are compatible."
            f"Final message to continue: {text}\nRendered chat:\n{rendered.replace(_PROBE, '').replace(MARK, '')}"
        )
    place = rendered.rindex(MARK)
    before = rendered[:place]
    return before if rendered.startswith(_PROBE, place) else before.rstrip()


BILLING_HEADER = "x-anthropic-billing-header"
"""Beginning of a line that differs between requests. vLLM drops the line, since it would prevent prefix caching."""

_KNOWN_PART_KEYS = frozenset(
    {
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url"),
        *("input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"),
        *("video_embeds", "video_url"),
    }
)
"""Keys of content parts with a meaning in vLLM; templates get all other keys unchanged."""
_CALL_KEYS, _FUNCTION_KEYS = ("id", "function", "type"), ("arguments", "name")


@dataclass(frozen=True, slots=True)
class Turns(Sequence[Turn]):
    """The messages of a checked request as turns, each made when it is read: there may be hundreds of thousands.

    With `takes_parts`, contents are lists of parts instead of one string.
    """

    messages: Sequence[Mapping[str, Any]]
    takes_parts: bool = False

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, place: int) -> Turn: ...

    @overload
    def __getitem__(self, place: slice) -> "Turns": ...

    def __getitem__(self, place: int | slice) -> "Turn | Turns":
        if isinstance(place, slice):
            return replace(self, messages=self.messages[place])
        message = self.messages[place]
        role = message["role"]
        is_plain = role in _PLAIN_ROLES and tuple(message) == _PLAIN_KEYS and isinstance(message["content"], str)
        if is_plain and not self.takes_parts:
            return message
        turn: dict[str, Any] = {"role": role, "content": _turn_content(message, self.takes_parts)}
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


_PLAIN_ROLES = frozenset({"user", "assistant"})
_PLAIN_KEYS = ("role", "content")


def _turn_content(message: Mapping[str, Any], takes_parts: bool) -> Any:
    role, content = message["role"], message.get("content")
    if isinstance(content, str) and role != "system":
        return [{"type": "text", "text": content}] if takes_parts and role != "tool" else content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    if role == "system":
        parts = _without_billing(parts)
    if not takes_parts:
        return flatten_text(parts)
    shown = [_shown_part(part) for part in parts if has_text(part)]
    # Templates take results of tools as strings, unless there is more than text in them.
    if role == "tool" and all(each["type"] == "text" for each in shown):
        return "\n".join(each["text"] for each in shown)
    return shown


def _without_billing(parts: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for part in parts:
        is_object = isinstance(part, Mapping)
        text = part if not is_object else part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append({**part, "text": rest} if is_object else rest)
    return kept


def _shown_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part_type(part) or ""
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
        found["tool_calls"] = [_call_of_turn(each) for each in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        found["reasoning"] = found["reasoning_content"] = reasoning
    return found


def _call_of_turn(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    parsed = {**function, "arguments": _call_arguments(function.get("arguments"))}
    return _in_order({**call, "function": _in_order(parsed, _FUNCTION_KEYS)}, _CALL_KEYS)


def _in_order(found: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """`found` with `keys` before all others."""
    return {key: found[key] for key in (*keys, *found) if key in found}


def _call_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of an earlier call; an empty object if they are not a JSON object."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}


class TemplateRequest(NamedTuple):
    """The fields of a request that set the form of its prompt. `arguments` are variables for the template.

    `tools` and `documents` may be anything: `chat_template_kwargs` can replace them.
    """

    tools: Any = None
    documents: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})


class ChatTemplate(Protocol):
    """Turns a conversation into the text of a prompt."""

    @property
    def takes_parts(self) -> bool:
        """Whether the template expects `content` as a list of parts in place of one text."""
        ...

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        """Return the prompt. Raises ApiError for a conversation that the template refuses."""
        ...


def check_conversation(turns: Sequence[Turn]) -> None:
    """Raise ApiError for a conversation without messages."""
    if not turns:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")


class ChatMLTemplate:
    """ChatML, with tools in the system turn as Hermes and Qwen have them.

    With the built-in tokenizer a message costs 5 tokens besides its content: two markers, the role and two line ends.
    The prompt for the answer costs 4 more.
    """

    takes_parts = False

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        check_conversation(turns)
        text = StringIO()
        if isinstance(request.tools, list) and request.tools:
            text.write(f"<|im_start|>system\n{_tool_instructions(request.tools)}<|im_end|>\n")
        for each in turns:
            text.write(_chatml_turn(each))
        prompt = text.getvalue()
        if request.continue_final_message:
            return prompt.removesuffix("<|im_end|>\n")
        return f"{prompt}<|im_start|>assistant\n" if request.add_generation_prompt else prompt


def _chatml_turn(turn: Turn) -> str:
    calls = "".join(f"\n<tool_call>\n{_called_name(each)}\n</tool_call>" for each in turn.get("tool_calls") or ())
    text = f"{turn.get('content') or ''}{calls}".lstrip("\n")
    return f"<|im_start|>{turn['role']}\n{text}<|im_end|>\n"


def _called_name(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(function, Mapping):
        function = {key: function[key] for key in ("name", *function) if key in function}
    return json.dumps(function, ensure_ascii=False, default=str)


def _tool_instructions(tools: Sequence[Any]) -> str:
    signatures = "\n".join(json.dumps(each, ensure_ascii=False, default=str) for each in tools)
    return (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{signatures}\n</tools>\n"
        'For each call, say {"name": <function>, "arguments": <object>} within <tool_call></tool_call>.'
    )


class MissingTemplate:
    """Refuses every conversation with vLLM's message."""

    takes_parts = False

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        raise ApiError(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template "
            "if the tokenizer does not define one."
        )
