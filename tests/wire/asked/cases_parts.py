"""Content parts of every form, by role, and tools of batches that are no objects."""

from collections.abc import Sequence
from typing import Any

from tests.wire.asked.cases_prompts import TOKENIZE, USER
from tests.wire.asked.setups import Asked

CHAT, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"
TEXT = {"type": "text", "text": "ok"}
WITH_ANOTHER: tuple[Any, ...] = (
    *("x", "", 1, {}, {"text": "y"}, {"type": 1, "text": "y"}, {"type": "text"}, {"type": "text", "text": ""}),
    *({"type": "text", "text": None}, {"type": "text", "text": 1}, {"type": "refusal"}, {"type": "thinking"}),
    *({"type": "input_text", "text": "z"}, {"type": "refusal", "refusal": ["r"]}, {"type": "tool_reference"}),
    *({"type": "tool_reference", "name": "t"}, {"type": "smell"}, {"type": "image_url"}, {"type": "audio_url"}),
    *({"type": "image_url", "image_url": "http://x/y.png"}, {"type": "video_url", "video_url": {"url": 1}}),
    *({"image_url": "x"}, {"uuid": "x"}, {"uuid": "x", **TEXT}, {"type": "prompt_embeds"}),
)
ALONE: tuple[Any, ...] = (
    *(["x"], [1], [[]], [{}], {"a": 1}, [{"type": "text"}], [{"type": "text", "text": 1}], [{"type": "smell"}]),
    *([{"type": "image_url", "image_url": {}}], [{"type": "file", "file": 1}], [{"type": "refusal"}]),
    *([{"type": "input_audio", "input_audio": {"data": "x", "format": "ogg"}}], [{"type": "input_text", "text": "z"}]),
)
TOOLS: tuple[Any, ...] = ([1], [None, "x"], [{"type": "function", "function": 1}], [{}])


def part_cases() -> Sequence[Asked]:
    """All requests about content parts."""
    found = [Asked(f"text and {part}", CHAT, _chat("user", [TEXT, part])) for part in WITH_ANOTHER]
    found += [Asked(f"{part} and text", TOKENIZE, _chat("assistant", [part, TEXT])) for part in WITH_ANOTHER[:9]]
    for role in ("user", "assistant", "system", "tool"):
        found += [Asked(f"{role}: {content}", CHAT, _chat(role, content)) for content in ALONE]
    further: tuple[dict[str, Any], ...] = ({"reasoning": "r"}, {"name": "n"}, {"tool_calls": []})
    for fields in further:
        found.append(Asked(f"assistant with {fields}", CHAT, _chat("assistant", [{"type": "text"}], **fields)))
    found.append(Asked("a role of its own", CHAT, _chat("narrator", [{"type": "text"}, "x"])))
    batch = {"model": "m", "messages": [USER], "max_tokens": 2, "ignore_eos": True}
    return [*found, *(Asked(f"tools {tools} of a batch", BATCH, {**batch, "tools": tools}) for tools in TOOLS)]


def _chat(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **({"tool_call_id": "t"} if role == "tool" else {}), **fields}
    return {"model": "m", "messages": [message], "max_tokens": 2, "ignore_eos": True}
